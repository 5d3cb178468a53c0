package guestboot

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// metaPackages depend on the newest kernel for virtual machines: Debian's first,
// then Ubuntu's.
var metaPackages = []string{"linux-image-cloud-amd64", "linux-image-virtual"}

// kernelParts matches the packages a kernel consists of. Drivers for hardware a
// guest never has are left where they are.
var kernelParts = regexp.MustCompile(`^linux-(image|binary|modules)-[0-9]`)

// aptSource takes the kernel from the mirror the host's apt is configured with.
//
// apt does what it is good at (sources, keys, proxies, signatures, checksums)
// on lists and a status file of its own, so that neither the host's packages
// nor a root user matter.
type aptSource struct {
	progress io.Writer
	// sources, if not empty, replaces the host's sources.list (tests).
	sources string
}

func (a aptSource) fetch(ctx context.Context, dir string, log *slog.Logger) (kernelPackage, error) {
	for _, tool := range []string{"apt-get", "dpkg-deb"} {
		if _, err := exec.LookPath(tool); err != nil {
			return kernelPackage{}, fmt.Errorf("%w (hint: use a Debian or Ubuntu host, or copy DATA/kernel from one)", ErrNoApt)
		}
	}
	apt, err := a.private()
	if err != nil {
		return kernelPackage{}, err
	}
	defer apt.close()

	log.Info("fetching the guest kernel from the package mirror")
	// A third party's source that fails is none of our business: what counts
	// is whether the kernel can be had afterwards.
	updateErr := apt.run(ctx, "update")
	if ctx.Err() != nil {
		return kernelPackage{}, context.Cause(ctx)
	}
	debs, err := apt.kernel(ctx)
	if err != nil {
		if ctx.Err() != nil {
			return kernelPackage{}, context.Cause(ctx)
		}
		return kernelPackage{}, fmt.Errorf("%w: %w (hint: apt-get update && apt-get download %s must work on this host)",
			ErrMirror, errors.Join(updateErr, err), metaPackages[0])
	}
	p := kernelPackage{Modules: make(map[string]string), Debs: make(map[string]string)}
	for _, deb := range debs {
		if err := deb.unpackInto(ctx, dir, &p); err != nil {
			return kernelPackage{}, err
		}
	}
	if p.Image == "" || p.Builtin == "" {
		return kernelPackage{}, fmt.Errorf("%w: its kernel packages hold no kernel that is understood", ErrMirror)
	}
	return p, nil
}

// private is an apt with state of its own.
type private struct {
	dir      string
	lock     *os.File // held while dir is in use
	conf     string
	progress io.Writer
}

const privatePattern = "sietch-apt-*"

func (a aptSource) private() (_ private, err error) {
	sweepPrivate()
	// Not below DATA: apt downloads as its own user, who may not look in there.
	dir, err := os.MkdirTemp("", privatePattern)
	if err != nil {
		return private{}, fmt.Errorf("prepare apt: %w", err)
	}
	p := private{dir: dir, conf: filepath.Join(dir, "apt.conf"), progress: a.progress}
	if p.lock, err = os.Open(dir); err == nil {
		err = unix.Flock(int(p.lock.Fd()), unix.LOCK_EX)
	}
	if err == nil {
		err = p.setUp(a.sources)
	}
	if err != nil {
		p.close()
		return private{}, fmt.Errorf("prepare apt: %w", err)
	}
	return p, nil
}

func (p private) close() {
	os.RemoveAll(p.dir)
	if p.lock != nil {
		p.lock.Close()
	}
}

// sweepPrivate removes what a fetch that was killed has left. One that has only
// just made its directory does not hold the lock yet, hence the age.
func sweepPrivate() {
	left, _ := filepath.Glob(filepath.Join(os.TempDir(), privatePattern))
	for _, dir := range left {
		f, err := os.OpenFile(dir, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_DIRECTORY, 0)
		if err != nil {
			continue
		}
		fi, err := f.Stat()
		if err == nil && time.Since(fi.ModTime()) > time.Minute && unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB) == nil {
			os.RemoveAll(dir)
		}
		f.Close()
	}
}

func (p private) setUp(sources string) error {
	if err := os.Chmod(p.dir, 0o755); err != nil {
		return err
	}
	for _, d := range []string{"state", "lists/partial", "cache/archives/partial", "debs", "none"} {
		if err := os.MkdirAll(filepath.Join(p.dir, d), 0o755); err != nil {
			return err
		}
	}
	if err := chownToDownloader(filepath.Join(p.dir, "debs")); err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(p.dir, "status"), nil, 0o644); err != nil {
		return err
	}
	// #clear: hooks of the host, such as those of docker images and of desktops.
	conf := fmt.Sprintf(`#clear APT::Update::Pre-Invoke;
#clear APT::Update::Post-Invoke;
#clear APT::Update::Post-Invoke-Success;
Dir::State "%[1]s/state";
Dir::State::lists "%[1]s/lists";
Dir::State::status "%[1]s/status";
Dir::State::extended_states "%[1]s/state/extended_states";
Dir::Cache "%[1]s/cache";
#clear APT::Architectures;
APT::Architecture "amd64";
Acquire::Languages "none";
Acquire::IndexTargets::deb::Contents-deb::DefaultEnabled "false";
Acquire::IndexTargets::deb::DEP-11::DefaultEnabled "false";
Acquire::IndexTargets::deb::DEP-11-icons-small::DefaultEnabled "false";
Acquire::IndexTargets::deb::DEP-11-icons::DefaultEnabled "false";
Acquire::IndexTargets::deb::DEP-11-icons-hidpi::DefaultEnabled "false";
Acquire::IndexTargets::deb::CNF::DefaultEnabled "false";
Acquire::IndexTargets::deb-src::Sources::DefaultEnabled "false";
Acquire::Retries "2";
Acquire::http::Timeout "20";
Acquire::https::Timeout "20";
`, p.dir)
	if sources != "" {
		list := filepath.Join(p.dir, "sources.list")
		if err := os.WriteFile(list, []byte(sources), 0o644); err != nil {
			return err
		}
		conf += fmt.Sprintf("Dir::Etc::sourcelist \"%s\";\nDir::Etc::sourceparts \"%s/none\";\n", list, p.dir)
	}
	return os.WriteFile(p.conf, []byte(conf), 0o644)
}

// run runs apt-get; an error ends with what apt complained about.
func (p private) run(ctx context.Context, args ...string) error {
	cmd := exec.CommandContext(ctx, "apt-get", append([]string{"-c", p.conf, "-q"}, args...)...)
	cmd.Dir = filepath.Join(p.dir, "debs")
	cmd.Env = append(os.Environ(), "LC_ALL=C", "DEBIAN_FRONTEND=noninteractive")
	var said bytes.Buffer
	cmd.Stdout, cmd.Stderr = &said, &said
	if p.progress != nil {
		both := io.MultiWriter(&said, p.progress)
		cmd.Stdout, cmd.Stderr = both, both
	}
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("apt-get %s: %w%s", args[0], err, complaints(said.String()))
	}
	return nil
}

// complaints are the errors and warnings in apt's output.
func complaints(said string) string {
	var b strings.Builder
	for line := range strings.Lines(said) {
		if strings.HasPrefix(line, "E: ") || strings.HasPrefix(line, "W: ") || strings.HasPrefix(line, "Err:") {
			b.WriteString("; " + strings.TrimSpace(line))
		}
	}
	return b.String()
}

// kernel downloads the newest kernel's packages.
func (p private) kernel(ctx context.Context) ([]deb, error) {
	var errs []error
	for _, meta := range metaPackages {
		m, err := p.download(ctx, meta)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		return p.withParts(ctx, m)
	}
	return nil, errors.Join(errs...)
}

// withParts downloads everything of the kernel m depends on, m included when it
// is a part itself.
func (p private) withParts(ctx context.Context, m deb) ([]deb, error) {
	var parts []deb
	seen := map[string]bool{m.name: true}
	for queue := []deb{m}; len(queue) > 0; queue = queue[1:] {
		d := queue[0]
		if kernelParts.MatchString(d.name) {
			parts = append(parts, d)
		}
		for _, want := range kernelDependencies(d.depends) {
			name, _, _ := strings.Cut(want, "=")
			if seen[name] {
				continue
			}
			seen[name] = true
			next, err := p.download(ctx, want)
			if err != nil {
				return nil, err
			}
			queue = append(queue, next)
		}
	}
	if len(parts) == 0 {
		return nil, fmt.Errorf("package %s depends on no kernel: %q", m.name, m.depends)
	}
	return parts, nil
}

// kernelDependencies picks the parts of a kernel out of a Depends field, as
// NAME or NAME=VERSION. Of alternatives the first counts.
func kernelDependencies(depends string) []string {
	var want []string
	for clause := range strings.SplitSeq(depends, ",") {
		first, _, _ := strings.Cut(clause, "|")
		name, relation, _ := strings.Cut(strings.TrimSpace(first), " ")
		name, _, _ = strings.Cut(name, ":")
		if !kernelParts.MatchString(name) {
			continue
		}
		if v, ok := strings.CutPrefix(strings.Trim(relation, "()"), "="); ok {
			name += "=" + strings.TrimSpace(v)
		}
		want = append(want, name)
	}
	return want
}

// download fetches one package, whose checksum apt has checked against the
// signed lists, and looks into it.
func (p private) download(ctx context.Context, want string) (deb, error) {
	debs := filepath.Join(p.dir, "debs")
	before, err := filepath.Glob(filepath.Join(debs, "*.deb"))
	if err != nil {
		return deb{}, err
	}
	if err := p.run(ctx, "download", want); err != nil {
		return deb{}, err
	}
	after, err := filepath.Glob(filepath.Join(debs, "*.deb"))
	if err != nil {
		return deb{}, err
	}
	old := make(map[string]bool)
	for _, f := range before {
		old[f] = true
	}
	for _, f := range after {
		if !old[f] {
			return inspectDeb(ctx, f)
		}
	}
	return deb{}, fmt.Errorf("apt-get download %s: nothing was downloaded", want)
}
