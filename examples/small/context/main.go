// Command context writes the build context of the image "small" into a directory.
package main

import (
	"fmt"
	"os"

	"github.com/sietch-dev/sietch/examples/small"
)

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: context DIR")
		os.Exit(2)
	}
	if err := small.WriteContext(os.Args[1]); err != nil {
		fmt.Fprintln(os.Stderr, "context:", err)
		os.Exit(1)
	}
}
