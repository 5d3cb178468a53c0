package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/sietch-dev/sietch/guestinit/boot"
	"github.com/sietch-dev/sietch/guestinit/machine"
)

func main() {
	switch name := filepath.Base(os.Args[0]); {
	case name == "modprobe":
		exit(boot.Modprobe(os.Args[1:]))
	case os.Args[0] == machine.AgentName:
		exit(machine.RunBesideInit())
	case os.Getpid() != 1:
		exit(errors.New("this program runs as process 1 of a sietch guest"))
	case name == filepath.Base(boot.ExitProgram):
		machine.Exit()
	default:
		machine.Fatal(run())
	}
}

// run boots and serves the machine; it returns when that is not possible.
func run() error {
	s, err := boot.Run()
	if err != nil {
		return err
	}
	if s.Config.Init {
		if err := machine.HandOver(s); err != nil {
			return err
		}
	}
	return machine.Run(s)
}

func exit(err error) {
	if err != nil {
		fmt.Fprintf(os.Stderr, "sietch: %v\n", err)
		os.Exit(1)
	}
	os.Exit(0)
}
