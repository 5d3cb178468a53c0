package main

import (
	"context"

	"github.com/urfave/cli/v2"
)

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
