package arrakis

import (
	"strconv"

	"github.com/sietch-dev/sietch/runtime"
)

// VM is a sandbox in the words of Arrakis.
type VM struct {
	VMName        string        `json:"vmName"`
	Status        string        `json:"status"` // RUNNING, PAUSED or STOPPED
	IP            string        `json:"ip"`     // with prefix length; empty when stopped
	TapDeviceName string        `json:"tapDeviceName"`
	PortForwards  []PortForward `json:"portForwards"`
}

// PortForward is one forwarded port; both ports are strings.
type PortForward struct {
	HostPort    string `json:"hostPort"`
	GuestPort   string `json:"guestPort"`
	Description string `json:"description"`
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
