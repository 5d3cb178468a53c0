package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/google/renameio/v2"
	"github.com/urfave/cli/v2"

	"github.com/sietch-dev/sietch/runtime"
)

func imageCommand(e *env) *cli.Command {
	return &cli.Command{
		Name:     "image",
		Category: groupImages,
		Usage:    "list, move and name images",
		Description: `An image is a bootable root file system and what its Dockerfile said of how to
run it (ENV, ENTRYPOINT, CMD, USER, WORKDIR, EXPOSE, LABEL). IMAGE is a
NAME[:TAG], an id, or a unique prefix of one.`,
		Subcommands: []*cli.Command{
			imageLsCommand(e),
			imageInspectCommand(e),
			imageRmCommand(e),
			imageTagCommand(e),
			imagePullCommand(e),
			imageBootstrapCommand(e),
			imageImportCommand(e),
			imageExportCommand(e),
		},
	}
}

func imageLsCommand(e *env) *cli.Command {
	return &cli.Command{
		Name:        "ls",
		Aliases:     []string{"list"},
		Usage:       "list images",
		Description: "Newest first. With -q, ids alone.\n\nExamples:\nsietch image ls\nsietch image ls --json | jq -r '.[].id'",
		Action: func(c *cli.Context) error {
			return runImageLs(c.Context, e)
		},
	}
}

func runImageLs(ctx context.Context, e *env) error {
	engine, err := e.use(ctx)
	if err != nil {
		return err
	}
	images, err := engine.ListImages(ctx)
	switch {
	case err != nil:
		return err
	case e.json:
		return e.document(images)
	}
	var rows [][]string
	var ids []string
	for _, i := range images {
		ids = append(ids, i.ID)
		rows = append(rows, []string{i.Name, i.Tag, short(i.ID), ago(e.now(), i.Created), size(i.SizeBytes)})
	}
	if e.quiet {
		return e.names(ids)
	}
	return e.table([]string{"NAME", "TAG", "ID", "CREATED", "SIZE"}, rows)
}

func imageInspectCommand(e *env) *cli.Command {
	return &cli.Command{
		Name:        "inspect",
		Usage:       "show all about an image, as JSON",
		ArgsUsage:   "IMAGE",
		Description: "Prints one JSON document, with and without --json.\n\nExamples:\nsietch image inspect debian:bookworm | jq .config.env",
		Action: func(c *cli.Context) error {
			return runImageInspect(c.Context, e, c.Args().First())
		},
	}
}

func runImageInspect(ctx context.Context, e *env, image string) error {
	engine, err := e.use(ctx)
	if err != nil {
		return err
	}
	found, err := engine.InspectImage(ctx, image)
	if err != nil {
		return err
	}
	return e.document(found)
}

func imageRmCommand(e *env) *cli.Command {
	return &cli.Command{
		Name:      "rm",
		Usage:     "remove images",
		ArgsUsage: "IMAGE...",
		Description: `Takes the name away, and deletes the image with its last name; an id deletes
the image with all its names. Refused while a sandbox or a commit needs it.

Examples:
sietch image rm agent:old`,
		Action: func(c *cli.Context) error {
			return runImageRm(c.Context, e, c.Args().Slice())
		},
	}
}

func runImageRm(ctx context.Context, e *env, images []string) error {
	engine, err := e.use(ctx)
	if err != nil {
		return err
	}
	return eachOf(ctx, images, func(image string) error {
		if err := engine.RemoveImage(ctx, image); err != nil {
			return err
		}
		return e.removed(image)
	})
}

func imageTagCommand(e *env) *cli.Command {
	return &cli.Command{
		Name:        "tag",
		Usage:       "give an image one more name",
		ArgsUsage:   "IMAGE NAME[:TAG]",
		Description: "The name is taken from the image that had it.\n\nExamples:\nsietch image tag agent agent:good",
		Action: func(c *cli.Context) error {
			return runImageTag(c.Context, e, c.Args().Get(0), c.Args().Get(1))
		},
	}
}

func runImageTag(ctx context.Context, e *env, image, name string) error {
	engine, err := e.use(ctx)
	if err != nil {
		return err
	}
	tagged, err := engine.TagImage(ctx, image, name)
	if err != nil || !e.json {
		return err
	}
	return e.document(tagged)
}

func imagePullCommand(e *env) *cli.Command {
	return &cli.Command{
		Name:      "pull",
		Usage:     "make an image from one in a registry",
		ArgsUsage: "REGISTRY_IMAGE",
		Description: `Any OCI image becomes a bootable one, under the name it has there. Credentials
are those of docker login. Prints the image id.

Examples:
sietch image pull python:3.12-slim`,
		Action: func(c *cli.Context) error {
			return runImagePull(c.Context, e, c.Args().First())
		},
	}
}

func runImagePull(ctx context.Context, e *env, ref string) error {
	engine, err := e.use(ctx)
	if err != nil {
		return err
	}
	image, err := engine.PullImage(ctx, ref, e.progress())
	if err != nil {
		return err
	}
	return e.result(image, image.ID)
}

func imageBootstrapCommand(e *env) *cli.Command {
	return &cli.Command{
		Name:      "bootstrap",
		Usage:     "make a base image from the host's package mirror",
		ArgsUsage: "DISTRIBUTION:RELEASE",
		Description: `Builds a Debian or Ubuntu base from the mirror that apt of this host uses, for
hosts that reach no registry. FROM DISTRIBUTION:RELEASE in a Dockerfile then
finds it. Does nothing when the image is already there. Prints the image id.

Examples:
sietch image bootstrap debian:bookworm`,
		Action: func(c *cli.Context) error {
			return runImageBootstrap(c.Context, e, c.Args().First())
		},
	}
}

func runImageBootstrap(ctx context.Context, e *env, name string) error {
	engine, err := e.use(ctx)
	if err != nil {
		return err
	}
	image, err := engine.BootstrapImage(ctx, name, e.progress())
	if err != nil {
		return err
	}
	return e.result(image, image.ID)
}

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

func formatOr(fallback, format string, known []string, wrong *problems) string {
	if format == "" {
		return fallback
	}
	if !slices.Contains(known, format) {
		wrong.add("--format: %s is not one of %s", quote(format), strings.Join(known, ", "))
	}
	return format
}

// removed tells that something is gone, to those who asked for JSON.
func (e *env) removed(name string) error {
	if !e.json {
		return nil
	}
	return e.object(struct {
		Name    string `json:"name"`
		Removed bool   `json:"removed"`
	}{name, true})
}
