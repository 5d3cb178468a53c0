package boot

import (
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"golang.org/x/sys/unix"
)

// Modules are the kernel modules that came with the initramfs.
type Modules struct {
	dir    *os.Root // nil in tests
	files  fs.FS
	byName map[string]*kernelModule
	alias  []alias

	insert func(ko []byte, file *os.File) error // tests replace it
}

type kernelModule struct {
	name    string
	depends []string
	load    sync.Once
	err     error
}

type alias struct {
	pattern string
	module  string
}

// OpenModules opens the modules of a booted machine.
func OpenModules() (*Modules, error) { return openModules(StateDir + "/" + stateModules) }

// openModules opens the directory of modules. It stays usable when the path to
// it is gone.
func openModules(dir string) (*Modules, error) {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, fmt.Errorf("open modules: %w", err)
	}
	m, err := loadIndex(root.FS())
	if err != nil {
		root.Close()
		return nil, fmt.Errorf("read module index: %w", err)
	}
	m.dir = root
	return m, nil
}

// loadIndex reads "index" in files: a line "module NAME DEPENDENCY…" for each
// module, each followed by its "alias PATTERN" lines.
func loadIndex(files fs.FS) (*Modules, error) {
	b, err := fs.ReadFile(files, "index")
	if err != nil {
		return nil, err
	}
	m := &Modules{files: files, byName: make(map[string]*kernelModule), insert: insertModule}
	name := ""
	for line := range strings.Lines(string(b)) {
		kind, rest, _ := strings.Cut(strings.TrimSuffix(line, "\n"), " ")
		switch kind {
		case "module":
			f := strings.Fields(rest)
			if len(f) == 0 {
				return nil, errors.New("a module without a name")
			}
			name = f[0]
			m.byName[name] = &kernelModule{name: name, depends: f[1:]}
		case "alias":
			if name == "" {
				return nil, errors.New("an alias of no module")
			}
			m.alias = append(m.alias, alias{rest, name})
		case "":
		default:
			return nil, fmt.Errorf("unknown line %q", line)
		}
	}
	return m, nil
}

// Has reports whether a module of that name came along; others are inside the
// kernel or nowhere.
func (m *Modules) Has(name string) bool { return m.byName[moduleName(name)] != nil }

// Load loads a module and what it needs. Loading one twice is no error.
func (m *Modules) Load(name string) error {
	k := m.byName[moduleName(name)]
	if k == nil {
		return fmt.Errorf("load module %s: %w", name, fs.ErrNotExist)
	}
	k.load.Do(func() { k.err = m.insertWithDependencies(k) })
	return k.err
}

func (m *Modules) insertWithDependencies(k *kernelModule) error {
	for _, d := range k.depends {
		if err := m.Load(d); err != nil {
			return fmt.Errorf("%w, needed by %s", err, k.name)
		}
	}
	if err := m.insertFile(k.name); err != nil {
		return fmt.Errorf("load module %s: %w", k.name, err)
	}
	return nil
}

// insertFile hands the kernel a module: the file itself, or what is packed in it.
func (m *Modules) insertFile(name string) error {
	f, err := m.files.Open(name + ".ko")
	if err == nil {
		defer f.Close()
		if file, ok := f.(*os.File); ok {
			return m.insert(nil, file)
		}
		ko, err := io.ReadAll(f)
		if err != nil {
			return err
		}
		return m.insert(ko, nil)
	}
	if !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if f, err = m.files.Open(name + ".ko.gz"); err != nil {
		return err
	}
	defer f.Close()
	z, err := gzip.NewReader(f)
	if err != nil {
		return err
	}
	ko, err := io.ReadAll(z)
	if err != nil {
		return err
	}
	return m.insert(ko, nil)
}

func insertModule(ko []byte, file *os.File) error {
	var err error
	if file != nil {
		err = unix.FinitModule(int(file.Fd()), "", 0)
	} else {
		err = unix.InitModule(ko, "")
	}
	if err == unix.EEXIST {
		return nil
	}
	return err
}

// dropBootModules removes the modules that are not packed: they are for devices
// that were there at boot, and loaded, or that this machine does not have.
func (m *Modules) dropBootModules() error {
	entries, err := fs.ReadDir(m.files, ".")
	if err != nil {
		return fmt.Errorf("drop boot modules: %w", err)
	}
	for _, e := range entries {
		if strings.HasSuffix(e.Name(), ".ko") {
			if err := m.dir.Remove(e.Name()); err != nil {
				return fmt.Errorf("drop boot modules: %w", err)
			}
		}
	}
	return nil
}

// Match returns the modules that name, a modalias of a device or what the
// kernel asks modprobe for, stands for.
func (m *Modules) Match(name string) []string {
	if m.Has(name) {
		return []string{moduleName(name)}
	}
	var found []string
	for _, a := range m.alias {
		if matchAlias(a.pattern, name) {
			found = append(found, a.module)
		}
	}
	return found
}

func moduleName(name string) string { return strings.ReplaceAll(name, "-", "_") }

// matchAlias matches as modules.alias(5) does: * and ? are wild, [] a set.
// Unlike in a path, a slash is nothing special.
func matchAlias(pattern, name string) bool {
	const slash = "\x00"
	ok, err := filepath.Match(strings.ReplaceAll(pattern, "/", slash), strings.ReplaceAll(name, "/", slash))
	return ok && err == nil
}

// rootDrivers are the drivers without which there is no root and no agent.
// Others wait until the host can reach the machine.
var rootDrivers = []string{"virtio_blk", "virtio_net"}

// loadForRoot loads the transports of the machine, then the drivers of disks
// and network card behind them.
func (m *Modules) loadForRoot() error {
	transports, err := m.wanted("platform", "pci")
	if err != nil {
		return err
	}
	if err := m.loadAll(transports); err != nil {
		return err
	}
	drivers, err := m.wanted("virtio")
	if err != nil {
		return err
	}
	return m.loadAll(slices.DeleteFunc(drivers, func(name string) bool { return !slices.Contains(rootDrivers, name) }))
}

// LoadForDevices loads the drivers of all other virtual devices that are there,
// and forgets those of devices that are not.
func (m *Modules) LoadForDevices() error {
	drivers, err := m.wanted("virtio")
	if err != nil {
		return err
	}
	return errors.Join(m.loadAll(drivers), m.loadForCPU(), m.dropBootModules())
}

// nestedModules are KVM by the flag in /proc/cpuinfo of the CPU that has it.
var nestedModules = map[string]string{"svm": "kvm_amd", "vmx": "kvm_intel"}

// loadForCPU loads KVM where the CPU shows virtualization, so that /dev/kvm is
// there for whoever opens it.
func (m *Modules) loadForCPU() error {
	info, err := os.ReadFile("/proc/cpuinfo")
	if err != nil {
		return err
	}
	first, _, _ := strings.Cut(string(info), "\n\n")
	for _, flag := range strings.Fields(first) {
		if name := nestedModules[flag]; name != "" && m.Has(name) {
			return m.Load(name)
		}
	}
	return nil
}

// wanted names the virtio modules for what is on some buses.
func (m *Modules) wanted(buses ...string) ([]string, error) {
	var names []string
	for _, bus := range buses {
		aliases, err := modaliases("/sys/bus/" + bus + "/devices")
		if err != nil {
			return nil, err
		}
		for _, a := range aliases {
			for _, name := range m.Match(a) {
				if strings.HasPrefix(name, "virtio") {
					names = append(names, name)
				}
			}
		}
	}
	return names, nil
}

// loadAll loads several modules at the same time: the kernel links them
// outside its locks, which pays as soon as there are two CPUs.
func (m *Modules) loadAll(names []string) error {
	errs := make([]error, len(names))
	var wg sync.WaitGroup
	for i, n := range names {
		wg.Go(func() { errs[i] = m.Load(n) })
	}
	wg.Wait()
	return errors.Join(errs...)
}

// modaliases reads what each device on a bus calls itself.
func modaliases(dir string) ([]string, error) {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil // no such bus in this machine
	}
	if err != nil {
		return nil, fmt.Errorf("look for devices: %w", err)
	}
	var all []string
	for _, e := range entries {
		b, err := os.ReadFile(filepath.Join(dir, e.Name(), "modalias"))
		if err == nil && len(b) > 0 {
			all = append(all, strings.TrimSpace(string(b)))
		}
	}
	return all, nil
}
