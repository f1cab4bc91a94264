package cluster

import (
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/recast-sh/recast/internal/words"
)

var (
	pciAddress = regexp.MustCompile(`^([0-9a-f]{4}:)?[0-9a-f]{2}:[0-9a-f]{2}(\.[0-9a-f])?$`)
	usbID      = regexp.MustCompile(`^[0-9a-fA-F]{4}:[0-9a-fA-F]{4}$`)
)

// MapDevice is the command that gives the VM by a mapping, which a new VM can have too,
// the device of the host that it has by its address; "" where none does. The node is
// restarted by it, since Proxmox plugs nothing into a VM that runs. A mapping must
// name all that the host shows of a PCI device, or the VM does not start
// (pve-guest-common, Mapping/PCI.pm, assert_valid); it can't stand for several at once.
func (vm VM) MapDevice(key, value string) string {
	options := strings.Split(value, ",")
	host, rest := "", []string{}
	for i, o := range options {
		name, of, named := strings.Cut(o, "=")
		switch {
		case !named && i == 0:
			host = o
		case name == "host":
			host = of
		case name == "romfile": // that is root's as well
			return ""
		default:
			rest = append(rest, o)
		}
	}
	name := fmt.Sprintf("vm%d-%s", vm.ID, key)
	device, kind := "", NumberedBus(key)
	switch {
	case kind == "hostpci" && pciAddress.MatchString(host):
		if strings.Count(host, ":") == 1 {
			host = "0000:" + host
		}
		at := host
		if !strings.Contains(at, ".") {
			at += ".0"
		}
		kind, device = "pci", fmt.Sprintf(`"node=%s,path=%s,$(cd /sys/bus/pci/devices/%s && printf id=%%s:%%s,subsystem-id=%%s:%%s,iommugroup=%%s `+
			`$(cut -c3- vendor device subsystem_vendor subsystem_device) $(basename $(readlink iommu_group)))"`, vm.Host, host, at)
	case kind == "usb" && usbID.MatchString(host):
		device = fmt.Sprintf("node=%s,id=%s", vm.Host, host)
	default:
		return ""
	}
	fresh := strings.Join(slices.Concat([]string{"mapping=" + name}, rest), ",")
	return fmt.Sprintf("pvesh create /cluster/mapping/%s --id %s --map %s && qm set %d --%s %s && qm reboot %d", kind, name, device, vm.ID, key, words.Quote(fresh), vm.ID)
}
