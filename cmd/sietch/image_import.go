package main

import (
	"context"
	"slices"
	"strings"

	"github.com/urfave/cli/v2"

	"github.com/sietch-dev/sietch/runtime"
)

var importFormats = []string{"auto", "oci", "docker", "rootfs"}

func imageImportCommand(e *env) *cli.Command {
	return &cli.Command{
		Name:      "import",
		Usage:     "make an image from an archive",
		ArgsUsage: "FILE|DIR|- [NAME[:TAG]]",
		Description: `Takes an OCI layout (directory or tar), an archive of docker save, or a tar of a
root file system, compressed or not; "-" reads it from stdin. Prints the image
id.

Examples:
docker save agent | sietch image import -
sietch image import rootfs.tar.xz base:1`,
		Flags: []cli.Flag{
			text("tag,t", "name the image `NAME[:TAG]`, as the second argument does (default: the name the archive gives it)"),
			text("format", "`auto|oci|docker|rootfs` what it is (default: auto)"),
		},
		Action: func(c *cli.Context) error {
			o := importOptions{source: c.Args().Get(0), name: c.Args().Get(1), tag: c.String("tag"), format: c.String("format")}
			return runImageImport(c.Context, e, o)
		},
	}
}

type importOptions struct{ source, name, tag, format string }

func runImageImport(ctx context.Context, e *env, o importOptions) error {
	var wrong problems
	r := runtime.ImportRequest{Source: o.source, Name: o.name, Format: formatOr("auto", o.format, importFormats, &wrong)}
	if o.tag != "" {
		if o.name != "" {
			wrong.add("two names: %s and --tag %s", quote(o.name), quote(o.tag))
		}
		r.Name = o.tag
	}
	if o.source == "-" {
		r.Source, r.Reader = "", e.in
		if e.isTerminal(e.in) {
			wrong.add("stdin is a terminal: an archive comes from a file or a pipe")
		}
	}
	if err := wrong.err("see sietch image import --help"); err != nil {
		return err
	}
	engine, err := e.use(ctx)
	if err != nil {
		return err
	}
	image, err := engine.ImportImage(ctx, r)
	if err != nil {
		return err
	}
	return e.result(image, image.ID)
}

func formatOr(fallback, format string, known []string, wrong *problems) string {
	if format == "" {
		return fallback
	}
	if !slices.Contains(known, format) {
		wrong.add("--format: %s is not one of %s", quote(format), strings.Join(known, ", "))
	}
	return format
}
