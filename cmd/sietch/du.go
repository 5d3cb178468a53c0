package main

import (
	"context"
	"strings"

	"github.com/urfave/cli/v2"
)

func duCommand(e *env) *cli.Command {
	return &cli.Command{
		Name:      "du",
		Category:  groupStorage,
		Usage:     "show what the data directory holds",
		ArgsUsage: "",
		Description: `Bytes on disk, by use. The cache is made again from the store when missing, the
build cache by the next build; both are gc's to empty.

Examples:
sietch du --json | jq .store_bytes`,
		Action: func(c *cli.Context) error {
			return runDu(c.Context, e)
		},
	}
}

func runDu(ctx context.Context, e *env) error {
	engine, err := e.use(ctx)
	if err != nil {
		return err
	}
	u, err := engine.DiskUsage(ctx)
	switch {
	case err != nil:
		return err
	case e.json:
		return e.document(u)
	}
	var rows [][]string
	var total int64
	for _, r := range []struct {
		use   string
		bytes int64
	}{
		{"images", u.ImagesBytes},
		{"store", u.StoreBytes},
		{"cache", u.CacheBytes},
		{"sandboxes", u.SandboxesBytes},
		{"build cache", u.BuildCacheBytes},
		{"kernel", u.KernelBytes},
	} {
		total += r.bytes
		rows = append(rows, []string{strings.ReplaceAll(r.use, " ", "-"), size(r.bytes)})
	}
	return e.table([]string{"USE", "SIZE"}, append(rows, []string{"total", size(total)}))
}
