package guestboot

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"strings"
)

// deb is a downloaded package.
type deb struct {
	path, name, version string
	depends             string
	sum                 string // sha256, hex
}

func inspectDeb(ctx context.Context, file string) (deb, error) {
	d := deb{path: file}
	for _, f := range []struct {
		name string
		to   *string
	}{{"Package", &d.name}, {"Version", &d.version}, {"Depends", &d.depends}} {
		out, err := exec.CommandContext(ctx, "dpkg-deb", "-f", file, f.name).Output()
		if err != nil {
			return d, fmt.Errorf("inspect %s: dpkg-deb: %w", filepath.Base(file), err)
		}
		*f.to = strings.TrimSpace(string(out))
	}
	f, err := os.Open(file)
	if err != nil {
		return d, err
	}
	defer f.Close()
	h := sha256.New()
	if _, err := io.Copy(h, f); err != nil {
		return d, err
	}
	d.sum = hex.EncodeToString(h.Sum(nil))
	return d, nil
}

// unpackInto writes what is of interest in a package into dir and notes it in p.
// File names are our own: those in the archive only say what a file is.
func (d deb) unpackInto(ctx context.Context, dir string, p *kernelPackage) (err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("unpack %s: %w", filepath.Base(d.path), err)
		}
	}()
	if err := os.MkdirAll(filepath.Join(dir, "modules"), 0o700); err != nil {
		return err
	}
	p.Debs[d.name+" "+d.version] = d.sum
	cmd := exec.CommandContext(ctx, "dpkg-deb", "--fsys-tarfile", d.path)
	var said bytes.Buffer
	cmd.Stderr = &said
	out, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	sortErr := p.sort(tar.NewReader(out), dir)
	io.Copy(io.Discard, out) // to its end, or Wait would report a broken pipe
	if err := cmd.Wait(); err != nil {
		return fmt.Errorf("dpkg-deb: %w: %s", err, strings.TrimSpace(said.String()))
	}
	return sortErr
}

func (p *kernelPackage) sort(r *tar.Reader, dir string) error {
	for {
		h, err := r.Next()
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
		if h.Typeflag != tar.TypeReg {
			continue
		}
		name, to := path.Clean("/"+h.Name), ""
		rest, isModule := moduleTree(name)
		switch {
		case strings.HasPrefix(name, "/boot/vmlinuz-"):
			p.Version = strings.TrimPrefix(name, "/boot/vmlinuz-")
			to = filepath.Join(dir, "vmlinuz")
			p.Image = to
		case isModule && rest == "modules.builtin":
			to = filepath.Join(dir, "modules.builtin")
			p.Builtin = to
		case isModule && isModuleFile(rest):
			to = filepath.Join(dir, "modules", moduleName(rest)+".ko")
			p.Modules[moduleName(rest)] = to
		default:
			continue
		}
		if err := writeFile(to, r); err != nil {
			return err
		}
	}
}

// moduleTree returns what follows /lib/modules/VERSION/ in a path.
func moduleTree(name string) (string, bool) {
	name = strings.TrimPrefix(name, "/usr")
	rest, ok := strings.CutPrefix(name, "/lib/modules/")
	if !ok {
		return "", false
	}
	_, rest, ok = strings.Cut(rest, "/")
	return rest, ok
}

func isModuleFile(name string) bool {
	for _, suffix := range []string{".ko", ".ko.xz", ".ko.zst", ".ko.gz"} {
		if strings.HasSuffix(name, suffix) {
			return true
		}
	}
	return false
}

func writeFile(name string, r io.Reader) error {
	f, err := os.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	defer f.Close()
	if _, err := io.Copy(f, io.LimitReader(r, sizeLimit)); err != nil {
		return err
	}
	return f.Close()
}
