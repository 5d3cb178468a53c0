package builder

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"time"
)

// baseImage is a distribution's base image that can be made from packages.
type baseImage struct {
	name   string // as asked for, with the tag
	distro string // ID of os-release
	suite  string
}

// releases are the numbers that images are tagged with beside the code names.
var releases = map[string]map[string]string{
	"debian": {"11": "bullseye", "12": "bookworm", "13": "trixie", "14": "forky", "latest": "stable"},
	"ubuntu": {"20.04": "focal", "22.04": "jammy", "24.04": "noble", "26.04": "resolute"},
}

// parseBase understands DISTRO:RELEASE, where RELEASE is a code name or a
// number, with "-slim" or without: what is made is slim in any case.
func parseBase(name string) (baseImage, error) {
	full, err := ParseName(name)
	if err != nil {
		return baseImage{}, err
	}
	distro, tag := SplitName(full)
	numbers, ok := releases[distro]
	if !ok {
		return baseImage{}, withHint(fmt.Errorf("bootstrap %s: %w: only debian and ubuntu are made from packages", full, ErrInvalidRequest),
			"sietch image pull "+full+" takes it from a registry")
	}
	suite := strings.TrimSuffix(tag, "-slim")
	if n, ok := numbers[suite]; ok {
		suite = n
	}
	for _, r := range suite {
		if r < 'a' || r > 'z' {
			return baseImage{}, fmt.Errorf("bootstrap %s: %w: %q is the code name of no release", full, ErrInvalidRequest, suite)
		}
	}
	if suite == "latest" {
		return baseImage{}, fmt.Errorf("bootstrap %s: %w: name a release", full, ErrInvalidRequest)
	}
	return baseImage{name: full, distro: distro, suite: suite}, nil
}

// Bootstrap makes a base image (debian:bookworm, debian:12, ubuntu:noble, …)
// from the package mirror and keyring that apt of this host is configured with:
// the smallest system apt runs on, and the certificate authorities. When the
// name is already in the store it returns that image.
//
// ErrInvalidRequest, ErrMissingTool, ErrNotRoot, ErrUnreachable.
func (b *Builder) Bootstrap(ctx context.Context, name string, progress io.Writer) (Image, error) {
	if progress == nil {
		progress = io.Discard
	}
	base, err := parseBase(name)
	if err != nil {
		return Image{}, err
	}
	if img, err := b.Image(ctx, base.name); err == nil {
		return img, nil
	} else if !errors.Is(err, ErrImageNotFound) {
		return Image{}, err
	}
	if os.Geteuid() != 0 {
		return Image{}, withHint(fmt.Errorf("bootstrap %s: %w", base.name, ErrNotRoot), "run it with sudo")
	}
	tool, err := findTool("mmdebstrap")
	if err != nil {
		return Image{}, fmt.Errorf("bootstrap %s: %w", base.name, err)
	}
	if _, err := findTool("runc"); err != nil { // before the minute of work, not after
		return Image{}, fmt.Errorf("bootstrap %s: %w", base.name, err)
	}
	host, err := hostSources(ctx)
	if err != nil {
		return Image{}, fmt.Errorf("bootstrap %s: %w", base.name, err)
	}
	id, code := osRelease()
	sources := sourcesFor(base, host, id, code)
	if len(sources) == 0 {
		return Image{}, withHint(fmt.Errorf("bootstrap %s: %w: apt of this host knows no mirror for %s", base.name, ErrInvalidRequest, base.distro),
			"sietch image pull "+base.name+" takes it from a registry, sietch image import FILE "+base.name+" from an archive")
	}
	img, err := b.bootstrap(ctx, tool, base, sources, progress)
	if err != nil {
		return Image{}, fmt.Errorf("bootstrap %s: %w", base.name, err)
	}
	return img, nil
}

// sourcesFor takes the host's repositories over to another release of the same
// distribution: the release itself, its updates and its security updates.
func sourcesFor(b baseImage, host []aptSource, hostID, hostCode string) []aptSource {
	aliases := []string{b.suite}
	if hostID == b.distro {
		aliases = append(aliases, hostCode, "stable", "oldstable", "testing", "unstable", "sid")
	}
	rolling := b.suite == "sid" || b.suite == "unstable"
	var out []aptSource
	seen := map[string]bool{}
	for _, s := range host {
		for _, suffix := range []string{"-updates", "-security", "/updates", ""} {
			code, ok := strings.CutSuffix(s.suite, suffix)
			if !ok {
				continue
			}
			if !contains(aliases, code) || rolling && suffix != "" {
				break
			}
			s.suite = b.suite + suffix
			if suffix == "/updates" {
				s.suite = b.suite + "-security"
			}
			if l := s.line(); !seen[l] {
				seen[l] = true
				out = append(out, s)
			}
			break
		}
	}
	// Updates alone make no system.
	for _, s := range out {
		if s.suite == b.suite {
			return out
		}
	}
	return nil
}

// aptForImages keeps what apt can fetch or compute again out of image layers. It
// is in the file where Dockerfiles that want the opposite expect it.
var aptForImages = []string{
	`APT::Keep-Downloaded-Packages "false";`,
	`Dir::Cache::pkgcache "";`,
	`Dir::Cache::srcpkgcache "";`,
	`Acquire::Languages "none";`,
}

func (b *Builder) bootstrap(ctx context.Context, tool string, base baseImage, sources []aptSource, progress io.Writer) (Image, error) {
	temp, release, err := b.store.tempDir()
	if err != nil {
		return Image{}, err
	}
	defer release()
	drop, err := b.store.holdBlobs()
	if err != nil {
		return Image{}, err
	}
	defer drop()
	args := []string{
		"--mode=root", "--variant=minbase", "--format=tar", "--include=ca-certificates",
		"--skip=cleanup/apt", // done by the last hook, whatever apt thinks of its caches then
		// mmdebstrap leaves the host's there.
		`--customize-hook=rm -f "$1/etc/resolv.conf" "$1/etc/hostname"`,
		`--customize-hook=printf '` + strings.Join(aptForImages, `\n`) + `\n' > "$1/etc/apt/apt.conf.d/docker-clean"`,
		`--customize-hook=find "$1/var/lib/apt/lists" "$1/var/cache/apt" -type f -delete`,
		base.suite, "-",
	}
	for _, s := range sources {
		args = append(args, s.line())
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	// What packages' scripts write has the mode that the umask leaves: the
	// distribution's, not the caller's.
	cmd := exec.CommandContext(ctx, "sh", append([]string{"-c", `umask 022 && exec "$0" "$@"`, tool}, args...)...)
	cmd.Env = append(os.Environ(), "LC_ALL=C", "TMPDIR="+temp)
	cmd.Env = append(cmd.Env, aptProxies(ctx)...)
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) } // it unmounts what it mounted
	cmd.WaitDelay = 10 * time.Second
	tail := &tailWriter{limit: 4096}
	cmd.Stderr = io.MultiWriter(progress, tail)
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		return Image{}, err
	}
	if err := cmd.Start(); err != nil {
		return Image{}, err
	}
	config := &Config{Env: []string{"PATH=" + defaultPath}, Cmd: []string{"bash"}}
	in, readErr := b.readRootfs(ctx, stdout, config)
	if readErr != nil {
		cancel()
	}
	if err := cmd.Wait(); err != nil && (readErr == nil || errors.Is(readErr, ErrArchive)) {
		if isNoSpace(readErr) {
			return Image{}, readErr
		}
		return Image{}, bootstrapError(sources, err, tail.String())
	}
	if readErr != nil {
		return Image{}, readErr
	}
	return b.admit(ctx, in, []string{base.name}, progress)
}

// bootstrapError says what mmdebstrap said last, and that the mirror may be the
// reason: apt has no exit code for that.
func bootstrapError(sources []aptSource, err error, said string) error {
	var why []string
	for _, l := range strings.Split(said, "\n") {
		if strings.HasPrefix(l, "E:") || strings.HasPrefix(l, "Err:") {
			why = append(why, strings.TrimSpace(l))
		}
	}
	text := strings.Join(why, "; ")
	if text == "" {
		text = lastLines(said, 3)
	}
	return withHint(fmt.Errorf("mmdebstrap: %w: %s", err, text),
		"apt-get update shows whether the mirror "+sources[0].uri+" answers and has this release")
}

// tailWriter keeps the end of what is written to it.
type tailWriter struct {
	buf   bytes.Buffer
	limit int
}

// Write implements io.Writer.
func (w *tailWriter) Write(p []byte) (int, error) {
	w.buf.Write(p)
	if extra := w.buf.Len() - w.limit; extra > 0 {
		w.buf.Next(extra)
	}
	return len(p), nil
}

func (w *tailWriter) String() string { return strings.TrimSpace(w.buf.String()) }
