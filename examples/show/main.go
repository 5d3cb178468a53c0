// Command show runs one of the examples against a sietch, as an agent's client
// does: it starts `sietch mcp` and speaks to it.
//
//	sietch build -t editor examples/editor
//	go run ./examples/show -sietch bin/sietch editor
//	go run ./examples/show -sietch bin/sietch -image agent treesearch
//	go run ./examples/show -sietch bin/sietch desktop
//
// SIETCH_DATA_DIR says where images and sandboxes are, as for sietch itself.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"time"

	"github.com/sietch-dev/sietch/examples/desktop"
	"github.com/sietch-dev/sietch/examples/editor"
	"github.com/sietch-dev/sietch/examples/tools"
	"github.com/sietch-dev/sietch/examples/treesearch"
)

func main() {
	sietch := flag.String("sietch", "sietch", "the program")
	image := flag.String("image", "", "image of the sandboxes (default: the example's name; agent for treesearch)")
	pictures := flag.String("pictures", "", "where desktop puts its photographs")
	verbose := flag.Bool("v", false, "show every call")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := show(ctx, flag.Arg(0), *sietch, *image, *pictures, *verbose); err != nil {
		fmt.Fprintln(os.Stderr, "show:", err)
		os.Exit(1)
	}
}

func show(ctx context.Context, what, sietch, image, pictures string, verbose bool) error {
	cmd := exec.Command(sietch, "mcp")
	cmd.Stderr = os.Stderr
	t, err := tools.Start(ctx, cmd)
	if err != nil {
		return err
	}
	defer t.Close()
	begun := time.Now()
	say := func(format string, args ...any) {
		fmt.Printf("%6.1f s  %s\n", time.Since(begun).Seconds(), fmt.Sprintf(format, args...))
	}
	if verbose {
		t.Say = func(line string) { say("          %s", line) }
	}
	if image == "" {
		if image = what; what == "treesearch" {
			image = "agent"
		}
	}
	switch what {
	case "editor":
		return editor.Show(ctx, t, editor.Options{Image: image, Name: "show-editor", Say: say})
	case "treesearch":
		path, err := treesearch.Search(ctx, t, treesearch.Options{Image: image, Name: "show", Width: 8, Depth: 3, Moves: 300, Say: say})
		if err != nil {
			return err
		}
		return treesearch.Check(ctx, t, "show-best", path[len(path)-1])
	case "desktop":
		o := desktop.Options{Image: image, Name: "show-desktop", Patience: 20 * time.Minute, Say: say}
		if pictures != "" {
			o.Photograph = func(what string, png []byte) {
				file := filepath.Join(pictures, strings.ReplaceAll(what, " ", "-")+".png")
				if err := os.WriteFile(file, png, 0o644); err != nil {
					fmt.Fprintln(os.Stderr, "show:", err)
				}
			}
		}
		return desktop.Show(ctx, t, o)
	}
	return fmt.Errorf("there is no example %q: say editor, treesearch or desktop", what)
}
