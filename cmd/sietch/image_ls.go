package main

import (
	"context"

	"github.com/urfave/cli/v2"
)

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
