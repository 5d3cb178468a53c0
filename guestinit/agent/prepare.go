package agent

import (
	"os"
	"os/exec"

	"github.com/sietch-dev/sietch/guestinit/proto"
)

// Prepared is a command made as an exec makes it, for who starts it otherwise:
// the machine's main process.
type Prepared struct {
	Cmd *exec.Cmd // with an empty stdin and no output
	who account
}

// Prepare resolves user, working directory, environment and program of r. A
// non-nil ExitStatus means that it cannot be run, as a shell would say it.
func (s *Server) Prepare(r proto.ExecRequest) (*Prepared, *proto.ExitStatus, error) {
	cmd, who, status, err := s.command(r)
	if status != nil || err != nil {
		return nil, status, err
	}
	return &Prepared{cmd, who}, nil, nil
}

// Own gives descriptors of the command to its user.
func (p *Prepared) Own(files ...*os.File) error { return own(files, p.who) }

// StartFailure is what a shell would report when starting the command failed
// with err; nil when the reason is not the command.
func (p *Prepared) StartFailure(err error) *proto.ExitStatus {
	return startFailure(p.Cmd.Args[0], err)
}
