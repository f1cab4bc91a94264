package cluster

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

// ForeignBridges lists what a VM is connected to beside the hosts' own bridges.
func ForeignBridges(vm VM) []string {
	var out []string
	for _, key := range slices.Sorted(maps.Keys(vm.Config)) {
		bridge := Disk{Options: strings.Split(vm.Config[key], ",")}.Option("bridge")
		if strings.TrimRight(key, "0123456789") == "net" && bridge != "" && !LocalBridge(bridge) {
			out = append(out, bridge)
		}
	}
	return out
}

// NewToken are the commands that make a user and its token, before any Lines.
func NewToken(token string) []string {
	user, name, _ := strings.Cut(token, "!")
	lines := []string{fmt.Sprintf("pveum user add %s", user), fmt.Sprintf("pveum user token add %s %s --privsep 1", user, name)}
	if strings.HasSuffix(user, "@pam") {
		return lines[1:] // a user of the system, root perhaps
	}
	return lines
}

// LocalBridge tells the hosts' own bridges from the VNets of SDN zones, whose
// zone the VM's configuration does not name.
func LocalBridge(bridge string) bool { return strings.HasPrefix(bridge, "vmbr") }
