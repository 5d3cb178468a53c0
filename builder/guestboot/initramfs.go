package guestboot

import (
	"encoding/hex"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"

	"github.com/google/renameio/v2"
)

// initramfsVersion is part of the key under which an initramfs is found again;
// it changes when the same guest init and kernel would give another archive.
const initramfsVersion = "1"

func initramfsKey(initDigest [32]byte) string {
	return initramfsVersion + "-" + hex.EncodeToString(initDigest[:16])
}

// writeInitramfs writes the archive a guest starts from:
//
//	/init             the guest init
//	/modules/index    see moduleIndex
//	/modules/NAME.ko
//	/dev/console      the kernel opens it for /init before anything is mounted
//	/dev /proc /sys   mount points
//
// It is not compressed: measured under emulation, the kernel is faster at
// copying than at unpacking (docs/boot.md has the figures).
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
	for _, name := range slices.Sorted(maps.Keys(modules)) {
		a.file("modules/"+name+".ko", 0o644, modules[name])
	}
	return a.close()
}

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
	out, err := renameio.NewPendingFile(dst, renameio.WithPermissions(0o600))
	if err != nil {
		return err
	}
	defer out.Cleanup()
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
	return out.CloseAtomicallyReplace()
}
