package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/google/renameio/v2"
	"github.com/urfave/cli/v2"
)

var exportFormats = []string{"docker", "oci", "rootfs"}

func imageExportCommand(e *env) *cli.Command {
	return &cli.Command{
		Name:      "export",
		Usage:     "write an image as an archive",
		ArgsUsage: "IMAGE",
		Description: `Writes a tar that docker load (docker), other OCI tools (oci) or tar itself
(rootfs) can read, to stdout or to a file, which appears only when whole.

Examples:
sietch image export agent | docker load
sietch image export --format rootfs -o agent.tar agent`,
		Flags: []cli.Flag{
			text("output,o", "write to `FILE`"),
			text("format", "`docker|oci|rootfs` what to write (default: docker)"),
		},
		Action: func(c *cli.Context) error {
			o := exportOptions{image: c.Args().First(), output: c.String("output"), format: c.String("format")}
			return runImageExport(c.Context, e, o)
		},
	}
}

type exportOptions struct{ image, output, format string }

func runImageExport(ctx context.Context, e *env, o exportOptions) error {
	var wrong problems
	format := formatOr("docker", o.format, exportFormats, &wrong)
	toStdout := o.output == "" || o.output == "-"
	if toStdout && e.isTerminal(e.out) {
		wrong.add("stdout is a terminal: name a file with -o, or pipe it")
	}
	if err := wrong.err("see sietch image export --help"); err != nil {
		return err
	}
	engine, err := e.use(ctx)
	if err != nil {
		return err
	}
	if toStdout {
		return engine.ExportImage(ctx, o.image, format, e.out)
	}
	return intoFile(o.output, func(w io.Writer) error {
		return engine.ExportImage(ctx, o.image, format, w)
	})
}

// intoFile lets write make a file, which replaces the one of that name when it
// is whole. A device or pipe of that name is written to instead.
func intoFile(name string, write func(io.Writer) error) error {
	if real, err := filepath.EvalSymlinks(name); err == nil {
		name = real
	}
	if st, err := os.Stat(name); err == nil && !st.Mode().IsRegular() && !st.IsDir() {
		return intoDevice(name, write)
	}
	f, err := renameio.NewPendingFile(name, renameio.WithPermissions(0o666), renameio.WithExistingPermissions())
	if err != nil {
		return missing(unwrapPath(err), "create file: %s", name)
	}
	defer f.Cleanup()
	if err := write(f); err != nil {
		return err
	}
	if err := f.CloseAtomicallyReplace(); err != nil {
		return fmt.Errorf("write file: %w", fileError(name, err))
	}
	return nil
}

func intoDevice(name string, write func(io.Writer) error) error {
	f, err := os.OpenFile(name, os.O_WRONLY, 0)
	if err != nil {
		return fmt.Errorf("open file: %w", fileError(name, err))
	}
	return errors.Join(write(f), f.Close())
}
