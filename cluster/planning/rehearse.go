package planning

import (
	"fmt"
	"maps"
	"net/netip"
	"regexp"
	"slices"
	"strings"

	"github.com/recast-sh/recast/cluster"
)

// Rehearsal says how a roll tries what its nodes will boot before it takes one out: on each host, for each kind of
// firmware, a scratch VM boots to maintenance mode and is deleted.
type Rehearsal struct {
	// Addresses are unused fixed addresses, each with its network, for scratch VMs of platform nocloud. If none is
	// in the node's network, DHCP assigns an address and the guest agent reports it.
	Addresses []netip.Prefix
	Gateway   netip.Addr // of the network that contains the address; invalid: none
}

// Medium is what a scratch VM boots, as the nodes will: exactly one of the two.
type Medium struct {
	ISO  string `json:"iso,omitempty"`
	Disk string `json:"disk,omitempty"` // the disk image from which its system disk is made
}

func (m Medium) String() string {
	if m.Disk != "" {
		return "a disk made from " + m.Disk
	}
	return m.ISO
}

// Trial is one image that is to be tried out on one host with one kind of firmware.
type Trial struct {
	Host     string `json:"host"`
	Firmware string `json:"firmware"` // in words, as in Rehearsed
	Medium
	Schematic string       `json:"schematic"`
	Nodes     []string     `json:"nodes"`            // the nodes that are to boot the image like that
	Addr      netip.Prefix `json:"address,omitzero"` // of the scratch VM; none: DHCP's
	Gateway   netip.Addr   `json:"gateway,omitzero"` // of that address; none: it has none

	ID       string `json:"-"` // of its step
	firmware firmware
	Model    NodePlan `json:"-"` // the first of the nodes
}

func (t Trial) String() string {
	at := "an address from DHCP"
	if t.Addr.IsValid() {
		at = t.Addr.String()
	}
	return fmt.Sprintf("a scratch VM on %s, at %s, boots %s (schematic %s) with %s, as %s will, and is deleted", t.Host, at, t.Medium, t.Schematic, t.Firmware, strings.Join(t.Nodes, ", "))
}

// firmware is the part of a VM's configuration that decides how it boots.
type firmware struct {
	bios, machine, cpu string
	efi                string // options of the EFI disk; "": there is none
	keys               bool   // Secure Boot keys come with it
	drive              string // bus of the prepared disk, with its controller; "": the VM boots an ISO
}

// firmwareOf returns the firmware with which a node's VM will boot.
func firmwareOf(n NodePlan) firmware {
	vm := *n.Found.VM
	or := func(key, otherwise string) string {
		if v := vm.Config[key]; v != "" {
			return v
		}
		return otherwise
	}
	f := firmware{bios: or("bios", "seabios"), machine: or("machine", "i440fx"), cpu: or("cpu", "kvm64")} // Proxmox' defaults
	if d, err := cluster.ParseDisk("efidisk0", vm.Config["efidisk0"]); err == nil {
		f.efi, f.keys = strings.Join(cluster.WithoutOption(d, "size").Options, ","), d.Flag("pre-enrolled-keys")
	}
	if n.Prepared != "" {
		if f.drive = strings.TrimRight(n.System.Key, "0123456789"); f.drive == "scsi" {
			f.drive += " (" + or("scsihw", "lsi") + ")"
		}
	}
	return f
}

func (f firmware) String() string {
	machine, _, _ := strings.Cut(f.machine, ",")
	cpu, _, _ := strings.Cut(f.cpu, ",")
	text := fmt.Sprintf("%s, %s, CPU %s", map[string]string{"ovmf": "OVMF", "seabios": "SeaBIOS"}[f.bios], machine, cpu)
	if f.keys {
		text += ", with Secure Boot keys"
	}
	if f.drive != "" {
		text += ", disk on " + f.drive
	}
	return text
}

var noPath = regexp.MustCompile(`[^a-z0-9.-]+`)

// id returns the firmware and the schematic of the image, as part of a step's ID.
func (f firmware) id(schematic string) string {
	id := f.bios
	if f.keys {
		id += "-secureboot"
	}
	if f.drive != "" {
		id += "-disk"
	}
	return noPath.ReplaceAllString(strings.ToLower(id+"-"+schematic), "-")
}

// TrialsOf returns a plan's trials, by host, each with its nodes. Nodes that an earlier run left unfinished get
// none: they are already out. A node whose system disk is not proven gets none either: it is refused.
func (p Plan) TrialsOf(h Rehearsal) []Trial {
	byHost := map[string][]Trial{}
	for _, n := range p.Work() {
		if !n.Strategy.Replaces() || n.Resume || n.Found.VM == nil || n.Prepared != "" && n.System == nil {
			continue
		}
		f, boots, of := firmwareOf(n), Medium{ISO: n.Wanted.Build.ISOName}, byHost[n.Host]
		if n.Prepared != "" {
			boots = Medium{Disk: n.Prepared}
		}
		same := func(t Trial) bool { return t.firmware == f && t.Medium == boots }
		if i := slices.IndexFunc(of, same); i >= 0 {
			of[i].Nodes = append(of[i].Nodes, n.Node)
			continue
		}
		t := Trial{
			Host: n.Host, Firmware: f.String(), Medium: boots, Schematic: n.Wanted.Schematic, Nodes: []string{n.Node},
			ID: f.id(n.Wanted.Schematic), firmware: f, Model: n,
		}
		for i, id := 2, t.ID; slices.ContainsFunc(of, func(o Trial) bool { return o.ID == t.ID }); i++ {
			t.ID = fmt.Sprintf("%s-%d", id, i)
		}
		byHost[n.Host] = append(of, t)
	}
	var out []Trial
	for i, host := range slices.Sorted(maps.Keys(byHost)) {
		for _, t := range byHost[host] {
			if t.Addr = h.addressFor(t.Model, i); t.Addr.Contains(h.Gateway) {
				t.Gateway = h.Gateway
			}
			out = append(out, t)
		}
	}
	return out
}

// addressFor picks a fixed address in the node's network, a different one for each host while there are enough.
func (h Rehearsal) addressFor(n NodePlan, host int) netip.Prefix {
	near := slices.DeleteFunc(slices.Clone(h.Addresses), func(a netip.Prefix) bool { return !a.Contains(n.Addr) })
	if n.Wanted.Build.Platform != "nocloud" || len(near) == 0 {
		return netip.Prefix{}
	}
	return near[host%len(near)]
}

// rehearse plans the trials, and the deletion of scratch VMs that killed runs left; if the plan has no work,
// another command deletes them.
func (p worldOf) rehearse(h *Rehearsal) {
	for _, s := range ScratchVMs(p.o.VMs, p.Cluster) {
		if len(p.Work()) == 0 {
			p.Warn = append(p.Warn, fmt.Sprintf("%s, is there: recast prune deletes it once that run has ended", s.Left()))
			continue
		}
		p.Scratch = append(p.Scratch, s.Left())
	}
	if h != nil {
		p.Trials = p.TrialsOf(*h)
	}
}

// chooseReboots says which upgrades in place boot through the firmware. With canary, that is the first upgrade to
// each image, alone and before all others: an image that boots by kexec only (talos#14146) would come back from
// every roll, and from no power failure. An upgrade that an earlier run began may have been rebooted in either way,
// so it goes through the firmware and still does not count as the first.
func (p *Plan) chooseReboots(how cluster.Reboot, named string) {
	first, of := map[string]*NodePlan{}, map[string]int{}
	for i := range p.Nodes {
		n := &p.Nodes[i]
		switch {
		case !n.Strategy.Upgrades(), n.OnlyTidies() && !n.Resume:
		case how == cluster.ByFirmware:
			n.Reboot = cluster.ByFirmware
			n.Notes = append(n.Notes, "it boots through the firmware (roll.reboot: powercycle)")
		case how != cluster.FirmwareOnce:
		case n.Phase == Unfinished:
			n.Reboot = cluster.ByFirmware
			n.Notes = append(n.Notes, "it boots through the firmware: how its earlier run rebooted it is not known")
		default:
			image := n.Build()
			of[image]++
			if first[image] == nil || n.goesBefore(*first[image], named) {
				first[image] = n
			}
		}
	}
	for image, n := range first {
		n.Reboot = cluster.ByFirmware
		n.Notes = append(n.Notes, "it boots through the firmware, as the first of its image (roll.reboot: canary), which takes about half a minute longer than kexec")
		if of[image] > 1 {
			n.Phase = Canary
		}
	}
}

// goesBefore says whether a node is the better one to try something out on: the canary, the named node, a worker,
// and rather a node that recast does not run on.
func (n NodePlan) goesBefore(other NodePlan, named string) bool {
	for _, better := range []func(NodePlan) bool{
		func(n NodePlan) bool { return n.Phase == Canary },
		func(n NodePlan) bool { return n.Node == named },
		func(n NodePlan) bool { return n.Role == cluster.Worker },
		func(n NodePlan) bool { return !n.OwnPod },
	} {
		if better(n) != better(other) {
			return better(n)
		}
	}
	return false
}
