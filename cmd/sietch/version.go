package main

import (
	goruntime "runtime"
	"runtime/debug"

	"github.com/urfave/cli/v2"
)

// version is set by the linker: -X main.version=v1.2.3.
var version string

func versionCommand(e *env) *cli.Command {
	return &cli.Command{
		Name:        "version",
		Category:    groupOther,
		Usage:       "print the version",
		Description: "The same as sietch --version.\n\nExamples:\nsietch version --json",
		Action: func(*cli.Context) error {
			b := thisBuild()
			return e.result(b, "sietch "+b.Version)
		},
	}
}

// build says what this binary was made from.
type build struct {
	Version  string `json:"version"`
	Revision string `json:"revision"`
	Go       string `json:"go"`
	Platform string `json:"platform"`
}

func thisBuild() build {
	b := build{Version: version, Go: goruntime.Version(), Platform: goruntime.GOOS + "/" + goruntime.GOARCH}
	if info, ok := debug.ReadBuildInfo(); ok {
		if b.Version == "" {
			b.Version = info.Main.Version
		}
		for _, s := range info.Settings {
			if s.Key == "vcs.revision" {
				b.Revision = s.Value
			}
		}
	}
	if b.Version == "" {
		b.Version = "unknown"
	}
	return b
}
