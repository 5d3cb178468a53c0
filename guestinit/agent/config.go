package agent

import "github.com/sietch-dev/sietch/guestinit/proto"

// DecodeConfig reads the configuration a machine is booted with. It is decoded
// like the requests after a restore, and for the same reason: every cold boot
// waits for it.
func DecodeConfig(b []byte) (proto.Config, error) {
	var c proto.Config
	err := decode(b, func(d *scanner) {
		d.object(func(key string) {
			switch key {
			case "version":
				c.Version = int(d.int(0, 1<<31))
			case "hostname":
				c.Hostname = d.str()
			case "network":
				c.Network = d.bool()
			case "args":
				c.Args = d.strings()
			case "env":
				c.Env = d.strings()
			case "user":
				c.User = d.str()
			case "working_dir":
				c.WorkingDir = d.str()
			case "stop_signal":
				c.StopSignal = d.str()
			case "init":
				c.Init = d.bool()
			case "identity":
				d.identity(&c.Identity)
			default:
				d.skip()
			}
		})
	})
	return c, err
}
