package main

import (
	"context"

	"github.com/urfave/cli/v2"
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
