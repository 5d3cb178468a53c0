package arrakis

import (
	"strconv"

	"github.com/sietch-dev/sietch/runtime"
)

// VM is a sandbox in the words of Arrakis.
type VM struct {
	IP            string        `json:"ip"` // with prefix length; empty when stopped
	PortForwards  []PortForward `json:"portForwards"`
	Status        string        `json:"status"` // RUNNING, PAUSED or STOPPED
	TapDeviceName string        `json:"tapDeviceName"`
	VMName        string        `json:"vmName"`
}

// PortForward is one forwarded port; both ports are strings.
type PortForward struct {
	Description string `json:"description"`
	GuestPort   string `json:"guestPort"`
	HostPort    string `json:"hostPort"`
}

// VMList is the answer that lists all.
type VMList struct {
	VMs []VM `json:"vms"`
}

// addressBits is the prefix length of the network that sandboxes have their
// addresses in.
const addressBits = "/20"

// Of is a sandbox as a VM. Its lists are never nil.
func Of(b runtime.Sandbox) VM {
	vm := VM{VMName: b.Name, PortForwards: []PortForward{}}
	switch b.State {
	case runtime.Running:
		vm.Status = "RUNNING"
	case runtime.Paused:
		vm.Status = "PAUSED"
	default:
		vm.Status = "STOPPED"
	}
	if b.IP != "" {
		vm.IP, vm.TapDeviceName = b.IP+addressBits, "tap0"
	}
	for _, p := range b.Ports {
		vm.PortForwards = append(vm.PortForwards, PortForward{
			HostPort: strconv.Itoa(int(p.Host)), GuestPort: strconv.Itoa(int(p.Guest)), Description: p.Protocol})
	}
	return vm
}

// ListOf is [Of] for several.
func ListOf(boxes []runtime.Sandbox) VMList {
	list := VMList{VMs: []VM{}}
	for _, b := range boxes {
		list.VMs = append(list.VMs, Of(b))
	}
	return list
}
