package guestboot

import (
	"bytes"
	"compress/gzip"
	"encoding/hex"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
)

// initramfsVersion is part of the key under which an initramfs is found again;
// it changes when the same guest init and kernel would give another archive.
const initramfsVersion = "2"

func initramfsKey(initDigest [32]byte) string {
	return initramfsVersion + "-" + hex.EncodeToString(initDigest[:16])
}

// writeInitramfs writes the archive a guest starts from:
//
//	/init                the guest init
//	/modules/index       see moduleIndex
//	/modules/NAME.ko     modules for booting
//	/modules/NAME.ko.gz  modules a running guest may ask for
//	/dev/console         the kernel opens it for /init before anything is mounted
//	/dev /proc /sys      mount points
//
// As a whole it is not compressed: measured under emulation, the kernel is
// faster at copying than at unpacking (docs/boot.md has the figures). What may
// never be needed is, because it stays in the guest's memory.
func writeInitramfs(w io.Writer, initELF []byte, modules map[string][]byte) error {
	infos := make(map[string]module, len(modules))
	for name, ko := range modules {
		m, err := parseModule(name, ko)
		if err != nil {
			return fmt.Errorf("module %s: %w", name, err)
		}
		infos[name] = m
	}
	order, err := loadOrder(infos)
	if err != nil {
		return err
	}

	a := archive{w: w}
	for _, d := range []string{"dev", "proc", "sys", "modules"} {
		a.dir(d, 0o755)
	}
	a.charDevice("dev/console", 0o600, 5, 1)
	a.file("init", 0o755, initELF)
	a.file("modules/index", 0o644, moduleIndex(order))
	boot := closure(infos, slices.Concat(bootModules, deviceModules))
	for _, name := range slices.Sorted(maps.Keys(modules)) {
		if boot[name] {
			a.file("modules/"+name+".ko", 0o644, modules[name])
			continue
		}
		packed, err := pack(modules[name])
		if err != nil {
			return fmt.Errorf("module %s: %w", name, err)
		}
		a.file("modules/"+name+".ko.gz", 0o644, packed)
	}
	return a.close()
}

func pack(ko []byte) ([]byte, error) {
	var b bytes.Buffer
	z, err := gzip.NewWriterLevel(&b, gzip.BestCompression)
	if err != nil {
		return nil, err
	}
	if _, err := z.Write(ko); err != nil {
		return nil, err
	}
	if err := z.Close(); err != nil {
		return nil, err
	}
	return b.Bytes(), nil
}

// withConfig does not flush dst to disk: it is for one start of one machine.
func withConfig(base, dst string, config []byte) (err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("write initramfs with config: %w", err)
		}
	}()
	in, err := os.Open(base)
	if err != nil {
		return err
	}
	defer in.Close()
	out, err := os.CreateTemp(filepath.Dir(dst), filepath.Base(dst)+".*") // mode 0600
	if err != nil {
		return err
	}
	defer func() {
		out.Close()
		if err != nil {
			os.Remove(out.Name())
		}
	}()
	n, err := io.Copy(out, in)
	if err != nil {
		return err
	}
	a := archive{w: out, n: n}
	a.pad() // the kernel looks for the next archive at a multiple of four bytes
	a.dir("sietch", 0o700)
	a.file("sietch/config.json", 0o600, config)
	if err := a.close(); err != nil {
		return err
	}
	return os.Rename(out.Name(), dst)
}
