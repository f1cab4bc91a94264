package shape

import (
	"net/netip"
	"slices"
	"strings"

	"github.com/recast-sh/recast/cluster"
)

// cloudInit says whether a cloud-init drive gives the setting to the machine (PVE/QemuServer.pm,
// $confdesc_cloudinit). Such a setting never waits for the VM to be off, as others do that need it
// (vmconfig_hotplug_pending has them all as fast-plug): the drive is made again at each start.
func cloudInit(key string) bool {
	return cluster.NumberedBus(key) == "ipconfig" ||
		slices.Contains([]string{"cicustom", "cipassword", "citype", "ciupgrade", "ciuser", "nameserver", "searchdomain", "sshkeys"}, key)
}

// givesAddress says whether a value of ipconfigN gives the machine that address.
func givesAddress(value string, addr netip.Addr) bool {
	for o := range strings.SplitSeq(value, ",") {
		_, of, _ := strings.Cut(o, "=")
		if prefix, err := netip.ParsePrefix(of); err == nil && prefix.Addr() == addr {
			return true
		}
	}
	return false
}

// addresses is a value of ipconfigN with its options in order, and its addresses as they are usually written.
func addresses(value string) string {
	var options []string
	for o := range strings.SplitSeq(value, ",") {
		name, of, _ := strings.Cut(strings.TrimSpace(o), "=")
		if prefix, err := netip.ParsePrefix(of); err == nil {
			of = prefix.String()
		} else if addr, err := netip.ParseAddr(of); err == nil {
			of = addr.String()
		}
		options = append(options, name+"="+of)
	}
	slices.Sort(options)
	return strings.Join(options, ",")
}
