package builder

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"strconv"
	"strings"

	"github.com/containerd/containerd/v2/core/remotes/docker"
	cerrdefs "github.com/containerd/errdefs"
	"github.com/distribution/reference"
	"github.com/moby/buildkit/util/resolver"
)

// localDomain is the registry that is nothing but the image store: any manifest
// of it by digest. The domain cannot exist outside.
const localDomain = "sietch.invalid"

// registryHosts puts the image store before every registry: a request for
// something the store has under that registry's name is answered from the disk,
// without a port or a connection, and anything else goes to the registry. Since
// both are one host to BuildKit, what fails is reported as the registry's own
// error.
func registryHosts(s *store) docker.RegistryHosts {
	real := resolver.NewRegistryConfig(nil)
	return func(domain string) ([]docker.RegistryHost, error) {
		if domain == localDomain {
			return []docker.RegistryHost{{
				Client:       &http.Client{Transport: &localTransport{store: s, domain: domain, next: nowhere{}}},
				Scheme:       "http",
				Host:         domain,
				Path:         "/v2",
				Capabilities: docker.HostCapabilityPull | docker.HostCapabilityResolve,
			}}, nil
		}
		hosts, err := real(domain)
		if err != nil {
			return nil, err
		}
		for i := range hosts {
			next := http.DefaultTransport
			c := &http.Client{}
			if hosts[i].Client != nil {
				*c = *hosts[i].Client
				if c.Transport != nil {
					next = c.Transport
				}
			}
			c.Transport = &localTransport{store: s, domain: domain, next: next}
			hosts[i].Client = c
		}
		return hosts, nil
	}
}

// localTransport answers the pull half of the registry protocol from the store
// and hands what it does not have to next.
type localTransport struct {
	store  *store
	domain string
	next   http.RoundTripper
}

// RoundTrip implements http.RoundTripper.
func (t *localTransport) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.Method == http.MethodGet || r.Method == http.MethodHead {
		repo, kind, object, ok := splitRegistryPath(r.URL.Path)
		if ok {
			resp, err := t.serve(r, repo, kind, object)
			if err == nil {
				return resp, nil
			}
			if !errors.Is(err, ErrImageNotFound) {
				return nil, err
			}
		}
	}
	return t.next.RoundTrip(r)
}

// splitRegistryPath takes /v2/REPOSITORY/(manifests|blobs)/OBJECT apart.
func splitRegistryPath(p string) (repo, kind, object string, ok bool) {
	p, ok = strings.CutPrefix(p, "/v2/")
	if !ok {
		return "", "", "", false
	}
	parts := strings.Split(p, "/")
	if len(parts) < 3 {
		return "", "", "", false
	}
	n := len(parts)
	if kind = parts[n-2]; kind != "manifests" && kind != "blobs" {
		return "", "", "", false
	}
	return strings.Join(parts[:n-2], "/"), kind, parts[n-1], true
}

func (t *localTransport) serve(r *http.Request, repo, kind, object string) (*http.Response, error) {
	digest := object
	if kind == "manifests" && !isDigest(object) {
		named, err := reference.ParseNormalizedNamed(t.domain + "/" + repo + ":" + object)
		if err != nil {
			return nil, ErrImageNotFound
		}
		img, err := t.store.byName(reference.FamiliarString(named))
		if err != nil {
			return nil, err
		}
		if digest, err = t.store.manifestOf(r.Context(), img); err != nil {
			return nil, fmt.Errorf("read local image %s: %w", reference.FamiliarString(named), err)
		}
	}
	f, err := t.store.openBlob(digest)
	if errors.Is(err, os.ErrNotExist) {
		return nil, ErrImageNotFound
	}
	if err != nil {
		return nil, err
	}
	mediaType := "application/octet-stream"
	if kind == "manifests" {
		if mediaType, err = manifestMediaType(f); err != nil {
			f.Close()
			return nil, fmt.Errorf("read local manifest %s: %w", digest, err)
		}
	}
	return serveFile(r, f, digest, mediaType)
}

// serveFile answers with the content of f, which it closes, or a part of it.
func serveFile(r *http.Request, f *os.File, digest, mediaType string) (*http.Response, error) {
	st, err := f.Stat()
	if err != nil {
		f.Close()
		return nil, err
	}
	resp := &http.Response{
		Status: "200 OK", StatusCode: http.StatusOK,
		Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
		Header: http.Header{
			"Content-Type":          {mediaType},
			"Docker-Content-Digest": {digest},
		},
		Request: r, ContentLength: st.Size(),
	}
	first := int64(0)
	if rest, ok := strings.CutPrefix(r.Header.Get("Range"), "bytes="); ok {
		from, _, _ := strings.Cut(rest, "-")
		if first, err = strconv.ParseInt(from, 10, 64); err != nil || first < 0 || first > st.Size() {
			f.Close()
			return nil, fmt.Errorf("read local blob %s: range %q", digest, r.Header.Get("Range"))
		}
		resp.Status, resp.StatusCode = "206 Partial Content", http.StatusPartialContent
		resp.Header.Set("Content-Range", fmt.Sprintf("bytes %d-%d/%d", first, st.Size()-1, st.Size()))
		resp.ContentLength -= first
	}
	resp.Header.Set("Content-Length", strconv.FormatInt(resp.ContentLength, 10))
	if r.Method == http.MethodHead {
		resp.Body = http.NoBody
		return resp, f.Close()
	}
	resp.Body = &sectionBody{io.NewSectionReader(f, first, st.Size()-first), f}
	return resp, nil
}

type sectionBody struct {
	io.Reader
	f *os.File
}

func (b *sectionBody) Close() error { return b.f.Close() }

// nowhere is behind the local domain: what the store does not have is nowhere.
type nowhere struct{}

func (nowhere) RoundTrip(r *http.Request) (*http.Response, error) {
	return &http.Response{
		Status: "404 Not Found", StatusCode: http.StatusNotFound, Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
		Header: http.Header{}, Body: http.NoBody, Request: r,
	}, nil
}

// explainResolve turns the failure to resolve a FROM into an error that names
// the image, why neither the store nor the registry has it, and what to do.
func explainResolve(identifier string, err error) error {
	name, ok := strings.CutPrefix(identifier, "docker-image://")
	if !ok {
		return err
	}
	named, perr := reference.ParseNormalizedNamed(name)
	if perr != nil {
		return err
	}
	domain := reference.Domain(named)
	familiar := reference.FamiliarString(named)
	if cerrdefs.IsNotFound(err) {
		return newDetailError(kindNotFound, imageHint(familiar), err,
			"find image %s: it is not in the local store, and %s has no such image", familiar, domain)
	}
	if cerrdefs.IsCanceled(err) {
		return err
	}
	return newDetailError(kindUnreachable, imageHint(familiar), err,
		"find image %s: it is not in the local store, and asking %s failed: %v", familiar, domain, rootCause(err))
}

// imageHint is the way to get an image without a registry.
func imageHint(familiar string) string {
	name, _, _ := strings.Cut(familiar, "@")
	if _, err := parseBase(name); err == nil {
		return "sietch image bootstrap " + name + " makes it from the package mirror"
	}
	return "sietch image import FILE " + name + " adds it from an archive"
}

// rootCause strips the layers of an error that only say where it passed, down
// to the request that failed.
func rootCause(err error) error {
	var request *url.Error
	if errors.As(err, &request) {
		return request
	}
	return err
}
