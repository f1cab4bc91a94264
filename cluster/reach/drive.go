package reach

import (
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"
)

// card is the number of the VM's network card with that MAC; "" if there is none.
func (b Blank) card(mac string) string {
	for key, value := range b.Config {
		n, ok := strings.CutPrefix(key, "net")
		if _, err := strconv.Atoi(n); !ok || err != nil {
			continue
		}
		for option := range strings.SplitSeq(value, ",") {
			// "virtio=BC:24:11:00:00:01": the model has the MAC, or macaddr does.
			if _, is, _ := strings.Cut(option, "="); mac != "" && strings.EqualFold(is, mac) {
				return n
			}
		}
	}
	return ""
}

// readsDrive says whether the boot ISO takes its network from the VM's ipconfigN.
func (b Blank) readsDrive() bool {
	return b.Platform == "nocloud" && b.CloudInit != "" && !b.otherFormat() && !strings.Contains(","+b.Config["cicustom"], ",network=")
}

// otherFormat says whether the drive is written in a format other than nocloud's. Windows gets one
// by default (qemu-server, Cloudinit.pm, get_cloudinit_format).
func (b Blank) otherFormat() bool {
	if citype := b.Config["citype"]; citype != "" {
		return citype != "nocloud"
	}
	return strings.HasPrefix(b.Config["ostype"], "w")
}

// freeDrive is an unused SCSI drive of the VM: Proxmox can hot-plug a SCSI drive, but not an IDE
// drive.
func (b Blank) freeDrive() string {
	for n := 30; n > 0; n-- {
		if key := fmt.Sprintf("scsi%d", n); b.Config[key] == "" {
			return key
		}
	}
	return "scsi0"
}

func option(value, name string) string {
	for part := range strings.SplitSeq(value, ",") {
		if is, ok := strings.CutPrefix(part, name+"="); ok {
			return is
		}
	}
	return ""
}

// ipconfig is a value of ipconfigN with an address and a gateway of one IP version; settings of the
// other version stay.
func ipconfig(old, ip, address, gw, gateway string) string {
	parts := slices.DeleteFunc(strings.Split(old, ","), func(part string) bool {
		name, _, _ := strings.Cut(part, "=")
		return name == "" || name == ip || name == gw
	})
	parts = append(parts, ip+"="+address)
	if gateway != "" {
		parts = append(parts, gw+"="+gateway)
	}
	slices.Sort(parts)
	return strings.Join(parts, ",")
}

// eui64 is the address that a card with that MAC gives itself in a network.
func eui64(network netip.Prefix, mac string) netip.Addr {
	hw, err := net.ParseMAC(mac)
	if err != nil || len(hw) != 6 || network.Bits() > 64 {
		return netip.Addr{}
	}
	b := network.Masked().Addr().As16()
	copy(b[8:], []byte{hw[0] ^ 2, hw[1], hw[2], 0xff, 0xfe, hw[3], hw[4], hw[5]})
	return netip.AddrFrom16(b)
}
