package planning

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/observe"
	"github.com/recast-sh/recast/cluster/shape"
	"github.com/recast-sh/recast/cluster/strategy"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/words"
)

// OnlyTidies: the node runs the build, and leftovers are cleaned up while it stays up. More is mended so, or stays.
func (n NodePlan) OnlyTidies() bool {
	return n.Strategy.Upgrades() && n.Drift.Of(true, false, false).Tidy() && !stopsVM(n)
}

// takenOut says whether this plan takes out a node that is in service now.
func (n NodePlan) takenOut() bool {
	return !n.Resume && n.Strategy.From() == cluster.Serving && !n.OnlyTidies()
}

// AwaitOthers refuses nodes that could not start while others are not Ready, unless those come first in the plan.
func (p *Plan) AwaitOthers(o observe.Observation) {
	var before, left []string
	for i := range p.Nodes {
		n := &p.Nodes[i]
		if n.Strategy == "" {
			continue
		}
		before = append(before, n.Node)
		if !n.takenOut() {
			continue
		}
		if down := p.Heed.Down(o.Nodes, n.Role, func(name string) bool { return slices.Contains(before, name) }); len(down) > 0 {
			n.Refused = append(n.Refused, OthersDown+strings.Join(down, ", ")+": "+BringBack)
		}
	}
	for _, k := range o.Nodes {
		if why := p.Heed.Excuse(k); !k.Ready && why != "" && !slices.Contains(before, k.Name) {
			left = append(left, fmt.Sprintf("%s (%s)", k.Name, why))
		}
	}
	if len(before) > 0 && len(left) > 0 {
		p.Warn = append(p.Warn, "not Ready, which no worker waits for: "+strings.Join(left, ", "))
	}
}

// Check refuses names of nodes that do not exist: a typing error must not look like a roll with nothing to do.
func (p Policy) Check(wanted []cluster.Wanted) error {
	names := p.Heed(wanted).Known
	var problems []error
	named := slices.Concat(p.Only, p.Exclude)
	if p.Bootstrap != "" {
		named = append(named, p.Bootstrap)
	}
	for _, name := range named {
		if !slices.Contains(names, name) {
			problems = append(problems, fault.WithHint(fault.Configf("no node %q in the configuration%s", name, words.DidYouMean(name, names)),
				"the nodes are: %s", strings.Join(names, ", ")))
		}
	}
	return errors.Join(problems...)
}

func (p Policy) Heed(wanted []cluster.Wanted) Heed {
	return Heed{Ignore: p.IgnoreNodes, Known: cluster.Each(wanted, func(w cluster.Wanted) string { return w.Name })}
}

func (p Policy) Selects(node string) bool {
	return (len(p.Only) == 0 || slices.Contains(p.Only, node)) && !slices.Contains(p.Exclude, node)
}

// checkLabels is CheckLabels for the nodes of the configuration that were asked for.
func (p Policy) checkLabels(wanted []cluster.Wanted, o observe.Observation) error {
	var nodes []cluster.KubeNode
	for i, w := range wanted {
		if f := o.Found[i]; f.Node != nil && p.Selects(w.Name) {
			nodes = append(nodes, *f.Node)
		}
	}
	return p.CheckLabels(nodes)
}

// CheckLabels refuses a selector that matches none of the nodes, as Check refuses unknown names.
func (p Policy) CheckLabels(nodes []cluster.KubeNode) error {
	if p.Labels.Text == "" || slices.ContainsFunc(nodes, func(n cluster.KubeNode) bool { return p.Labels.Matches(n.Metadata.Labels) }) {
		return nil
	}
	return fault.WithHint(fault.Configf("no node of the configuration that was asked for has labels %q", p.Labels.Text),
		"kubectl get nodes -l '%s' shows which nodes do", p.Labels.Text)
}

func (p Policy) maxUnavailable(wanted []cluster.Wanted, o observe.Observation) int {
	if p.MaxUnavailable == nil {
		return 1
	}
	return max(1, p.MaxUnavailable(workers(wanted, o)))
}

// picks says whether the node is selected. A node whose labels are unknown matches no label selector.
func (p Policy) picks(node string, f observe.Found) bool {
	labelled := p.Labels.Text == "" || f.Node != nil && p.Labels.Matches(f.Node.Metadata.Labels)
	return labelled && p.Selects(node)
}

// planInstallReset gives a machine that was reset its configuration back. Nothing is installed and no disk is changed:
// its system is still there, so Talos ignores the install disk of the configuration (v1alpha1_state.go, Installed).
func planInstallReset(n *NodePlan, o observe.Observation, p Policy) {
	f := n.Found
	if f.Blank.Installable() || !f.ConfigKnown {
		n.Why = "it could not be read"
		return
	}
	if f.Node != nil && f.Node.ControlPlane {
		n.Role = cluster.ControlPlane
	}
	n.Resume, n.Strategy, n.EtcdKept = true, cluster.InstallReset, true
	n.Why = "it is in maintenance mode: it gets its configuration back, then everything is checked again"
	who := cluster.Proof{UUID: f.Blank.UUID, Confirmed: p.Fingerprints}
	if f.VM != nil {
		who.SKU = f.VM.Proof()
	}
	if err := who.Check(f.Blank.UUID, f.Blank.SKU, f.Blank.Fingerprint); err != nil {
		n.Refused = append(n.Refused, fmt.Sprintf("%v (%s)", err, strings.Join(fault.Hints(err), "; ")))
		if who.SKU == "" {
			n.Unproven = f.Blank.Fingerprint
		}
	}
	n.Notes = append(n.Notes, f.FileHardlyCompared()...)
	if f.VM != nil {
		c := strategy.Candidate{Wanted: n.Wanted, VM: *f.VM, Found: f, Observation: o}
		n.Refused = append(n.Refused, cluster.Texts(c.Doubled())...)
	}
}

// planFallback decides, while the node still runs, whether its system disk may be replaced if the node does not
// come back from an in-place upgrade: Talos' own rollback can't be relied upon, another system disk can. The node
// would get the build that it runs now.
func planFallback(n *NodePlan, o observe.Observation, p Policy, system cluster.Disk, systemErr error) {
	if p.BootFailure != cluster.ReimageOnBootFailure || len(n.Refused) > 0 {
		return
	}
	n.IsWayBack = true
	w := n.Wanted
	w.Strategy = cluster.Reimage
	against := append(strategy.Decide(w, n.Found, o, system, systemErr).Refused, o.Hidden(*n.Found.VM)...)
	if n.FallbackKept = n.Role != cluster.ControlPlane; !n.FallbackKept {
		onSystem, err := strategy.EtcdOnSystemDisk(*n.Found.Machine)
		refused, _ := strategy.EtcdRules(len(o.ControlPlanes()), onSystem, n.Found.Machine.TypeInit, cluster.Reimage, p.AcceptOutage)
		if err != nil {
			refused = append(refused, err.Error())
		}
		n.FallbackKept = !onSystem
		against = append(against, refused...)
	}
	// The schematic says more than the lock's hash, which others share; but not what an image is for.
	m := *n.Found.Machine
	for _, b := range o.PastBuilds {
		if m.Schematic.LockHash() != "" && b.SchematicID == m.Schematic.ID && b.TalosVersion == m.TalosVersion && len(cluster.DiffTarget(b, m.RunningSystem)) == 0 && b.Installer != "" {
			n.Previous = &b
		}
	}
	if n.Previous == nil {
		against = append(against, "no past lock here has the build that it runs")
	} else if _, o := cluster.BlankAddress(n.Found.Addr, *n.Found.VM, m, *n.Previous); o.Text != "" && !slices.Contains(against, o.Text) {
		against = append(against, o.Text)
	}
	if d := o.NewDisk(n.Wanted, n.Found.VM.Host, system); d != nil {
		for _, use := range observe.SpaceUses([]observe.NewDisk{*d}, o.Rooms) {
			against = append(against, slices.DeleteFunc(use.Lacks(1), func(lack string) bool { return lack == "" })...)
		}
	}
	if len(against) > 0 {
		n.Previous = nil
		n.Notes = append(n.Notes, "should it not come back, a reimage is not possible: "+strings.Join(against, "; "))
		return
	}
	n.Notes = append(n.Notes, fmt.Sprintf("should it not come back within the boot deadline, its system disk is parked and build %s, which it runs now, is installed on a blank one", words.Short(n.Previous.ID)))
	n.Add(system, true)
}

// Heed says which Nodes that are not Ready keep others from being taken out.
type Heed struct {
	Known  []string // the nodes of recast.yaml; empty: every Node counts
	Ignore []string // roll.ignoreNodes
}

// Down lists the Nodes that keep a node of that role in. A control plane that is down keeps others in despite excuses.
func (h Heed) Down(nodes []cluster.KubeNode, role string, not func(name string) bool) (down []string) {
	for _, k := range nodes {
		counts := h.Excuse(k) == "" || role == cluster.ControlPlane && k.ControlPlane
		if !k.Ready && counts && !not(k.Name) {
			down = append(down, k.Name)
		}
	}
	slices.Sort(down)
	return down
}

// Excuse says why a Node that is not Ready does not count; "": it does. One that a person cordoned is excused.
func (h Heed) Excuse(k cluster.KubeNode) string {
	switch {
	case slices.Contains(h.Ignore, k.Name):
		return "in roll.ignoreNodes"
	case len(h.Known) > 0 && !slices.Contains(h.Known, k.Name):
		return "not in recast.yaml"
	case k.Unschedulable && k.Mark == nil:
		return "cordoned"
	}
	return ""
}

const (
	OthersDown = "other nodes are not Ready: "
	BringBack  = "bring them back first; one more out would be one too many. A worker that is to stay away: kubectl cordon it, or name it in roll.ignoreNodes"
)

// Policy says how a roll proceeds.
type Policy struct {
	WorkersFirst   bool
	Canary         bool
	CanaryNode     string                // which node; "", or a node that does not change: a worker if there is one
	MaxUnavailable func(workers int) int // how many of so many workers may be out at a time; nil: 1
	WorkersBeside  bool                  // control planes and workers at the same time
	PerHost        int                   // nodes at a time on one Proxmox host; 0: 1
	AcceptOutage   bool                  // accepts an outage of etcd if there are only two control planes
	Surge          func(workers int) int // how many surge nodes serve while some of so many workers are out; nil: none
	SurgeEnds      bool                  // the workers are done: surge nodes are removed, and nothing else
	Reach          []netip.Addr          // the talosconfig's endpoints, for a removal
	Only           []string              // nodes to look at; empty: all
	Exactly        bool                  // Only names the surge nodes, too
	Exclude        []string
	Labels         cluster.Selector // of their Nodes
	BootFailure    cluster.BootFailure
	Fingerprints   []string       // of certificates in maintenance mode that a person has confirmed: see cluster.Proof
	Reboot         cluster.Reboot // after upgrades in place; "": by kexec
	DrainDeletes   bool           // delete pods whose eviction is still refused at the end of a drain
	IgnoreNodes    []string       // nodes whose Nodes may be not Ready
	KeepDisks      int            // old system disks of a node that stay parked; 0: 1
	Rehearse       *Rehearsal     // nil: what the nodes will boot is not tried out before the first node goes
	What           []What         // the parts that are rolled; empty: all
	// Bootstrap is the control plane with which a cluster begins: only nodes that do not exist yet are created,
	// side by side. "": a roll.
	Bootstrap string
	Rebuild   string // the SHA-256 of the snapshot with which a broken cluster begins again; "": it begins empty
}

// What is a part of a node that a roll brings to its wanted state.
type What string

// The parts. A node that gets another image by recreate or reimage also gets its configuration.
const (
	Image  What = "image"
	Config What = "config"
	VM     What = "vm"
)

func (p Policy) does(w What) bool { return len(p.What) == 0 || slices.Contains(p.What, w) }

func (p Policy) of(d observe.Drift) observe.Drift {
	return d.Of(p.does(Image), p.does(Config), p.does(VM))
}

// leaves says why a node stays as it is if it differs only in what is not rolled.
func (p Policy) leaves(d observe.Drift) string {
	only := cluster.Each(p.What, func(w What) string { return string(w) })
	asked := "excluded by --what " + strings.Join(only, ",")
	config, vm := !p.does(Config) && d.ConfigReason() != "", !p.does(VM) && d.IsShape()
	switch {
	case !p.does(Image) && d.Of(true, false, false).Rollable():
		return "its image is not as wanted, " + asked
	case config && vm:
		return "only its machine configuration and its VM differ, " + asked
	case vm:
		return "only its VM differs, " + asked
	}
	return "only its machine configuration differs, " + asked
}

// Rehearsal: on each host, for each firmware, a scratch VM boots what nodes will, before the first is taken out.
type Rehearsal struct {
	// Addresses are unused ones for scratch VMs of nocloud. If none is in the network, DHCP and the guest agent serve.
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

func firmwareOf(n NodePlan) firmware {
	vm := *n.Found.VM
	or := func(key, otherwise string) string { return cmp.Or(vm.Config[key], otherwise) }
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

// TrialsOf returns trials by host. Nodes left unfinished are already out, unproven ones refused: they get none.
func (p Plan) TrialsOf(h Rehearsal) (out []Trial) {
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

func (h Rehearsal) addressFor(n NodePlan, host int) netip.Prefix {
	near := slices.DeleteFunc(slices.Clone(h.Addresses), func(a netip.Prefix) bool { return !a.Contains(n.Addr) })
	if n.Wanted.Build.Platform != "nocloud" || len(near) == 0 {
		return netip.Prefix{}
	}
	return near[host%len(near)]
}

// rehearse plans the trials, and the deletion of killed runs' scratch VMs, which without work another command deletes.
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

// chooseReboots says which upgrades in place boot through the firmware. With canary, that is the first upgrade to each
// image, alone and before all others: an image that boots by kexec only (talos#14146) would come back from every roll,
// and from no power failure. One that an earlier run began goes through the firmware, too, and does not count.
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

// goesBefore: the node is better to try something on: the canary, the named, a worker, one that recast does not run on.
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

// stands says whether the node's VM is still as it was before the run.
func (n NodePlan) stands() bool {
	return n.Found.VM != nil && len(n.Refused) == 0 && (!n.Resume || n.Found.VM.MadeBy() != n.Run)
}

// Makes returns the VM that Proxmox is to create in place of the node's, which is deleted; nil: none.
func (n NodePlan) Makes() *cluster.VM {
	switch {
	case !n.stands():
		return nil
	case takesAway(n): // for a rebuild
		return new(shape.New(n.Wanted, n.VMID, ""))
	case n.Strategy.VM() == cluster.VMAgain:
		return n.Found.VM
	}
	return nil
}

// HandsOver returns the drives that the node's VM is to hand over to its parking VM: all of a VM that is deleted, else
// the system disk, in case of a reimage. What a cancelled replacement gives back was handed over before.
func (n NodePlan) HandsOver() []cluster.Disk {
	s := n.Strategy
	if !n.stands() || !s.DeletesVM() && !s.SwapsInVM() && !s.Upgrades() {
		return nil
	}
	disks, _ := n.Found.VM.Disks() // the planner refuses a VM whose drives can't be read
	return slices.DeleteFunc(disks, func(d cluster.Disk) bool {
		system := n.System != nil && n.System.Key == d.Key
		return d.CDROM || d.CSI() || d.Owner != n.Found.VM.ID || !system && !s.DeletesVM()
	})
}

// Then returns what follows on the node: it is made again after a rebuild's removal, or reimaged after in-place.
func (n NodePlan) Then() (NodePlan, bool) {
	switch {
	case takesAway(n):
		n.Strategy = cluster.Create
	case n.Previous != nil:
		n.Strategy, n.Previous = cluster.Reimage, nil
	default:
		return n, false
	}
	return n, true
}

// Proofs says in a line what scratch VMs prove before the first node goes; "": nothing.
func (p Plan) Proofs() string {
	hosts, storages, makes := map[string]bool{}, map[string]bool{}, false
	for _, n := range p.Work() {
		if n.Makes() != nil {
			makes, hosts[n.Host] = true, true
		}
		for _, d := range n.HandsOver() {
			storages[d.Storage()], hosts[n.Host] = true, true
		}
	}
	var what []string
	if makes {
		what = append(what, "that VMs can be created again")
	}
	if len(storages) > 0 {
		what = append(what, "that volumes can be handed over on "+strings.Join(slices.Sorted(maps.Keys(storages)), ", "))
	}
	if len(what) == 0 {
		return ""
	}
	return "with scratch VMs on " + strings.Join(slices.Sorted(maps.Keys(hosts)), ", ") + " " + strings.Join(what, ", and ")
}

// Scratch is a scratch VM: made to try out what nodes will boot, and disposable afterwards.
type Scratch struct {
	VM   cluster.VM
	Run  string // the run that made the VM
	UUID string // the UUID in its description
}

const scratchPrefix = "recast-rehearse-"

func ScratchName(id cluster.VMID) string { return scratchPrefix + strconv.Itoa(int(id)) }

// ScratchMark returns the last line of the description of a scratch VM whose SMBIOS has that UUID.
func ScratchMark(run, name, uuid string) string {
	return fmt.Sprintf("%s%s rehearse cluster=%s uuid=%s", cluster.RunMark, run, name, uuid)
}

// ScratchMarkOf is ScratchMark for a UUID of Proxmox', as setting one needs VM.Config.HWType; uuid: of its disks.
func ScratchMarkOf(run, name, uuid string, id cluster.VMID) string {
	return fmt.Sprintf("%s vmid=%d", ScratchMark(run, name, uuid), id)
}

// ScratchSerial names a scratch VM's disk, within the 20 characters of every bus. Another disk was not made with it.
func ScratchSerial(uuid string) string { return "recast-" + uuid[strings.LastIndex(uuid, "-")+1:] }

// ScratchVMs returns a cluster's scratch VMs. A copy has another name, UUID or number than in its description.
func ScratchVMs(vms []cluster.VM, cluster string) (out []Scratch) {
	for _, vm := range vms {
		run := vm.MadeBy()
		if run == "" || vm.Name != ScratchName(vm.ID) {
			continue
		}
		for line := range strings.Lines(vm.Config["description"]) {
			line = strings.TrimSpace(line)
			_, rest, _ := strings.Cut(line, " uuid=")
			uuid, _, _ := strings.Cut(rest, " ")
			if uuid != "" && (line == ScratchMark(run, cluster, vm.UUID()) || line == ScratchMarkOf(run, cluster, uuid, vm.ID)) {
				out = append(out, Scratch{VM: vm, Run: run, UUID: uuid})
				break
			}
		}
	}
	return out
}

func (s Scratch) Strange() (out []string) {
	say := func(is bool, what string) {
		if is {
			out = append(out, what)
		}
	}
	say(s.VM.Template, "it is a template")
	say(s.VM.HA, "Proxmox HA manages it")
	say(s.VM.Lock != "", "it is locked ("+s.VM.Lock+")")
	disks, err := s.VM.Disks()
	say(err != nil, "its drives can't be read")
	for _, d := range disks {
		made := d.CloudInit() || d.Key == "efidisk0" || d.Bootable() && d.Option("serial") == ScratchSerial(s.UUID)
		ours := d.CDROM && !d.CloudInit() || made && d.Owner == s.VM.ID
		say(!ours, fmt.Sprintf("%s (%s) is not a drive that it was created with", d.Key, d.Volid))
	}
	return out
}

// LeftScratch is a scratch VM that a killed run has left, as plans and reports name it.
type LeftScratch struct {
	VMID cluster.VMID `json:"vmid"`
	Name string       `json:"name"`
	Host string       `json:"host"`
	Run  string       `json:"run"` // the run that made the VM
	UUID string       `json:"uuid"`
}

func (s Scratch) Left() LeftScratch {
	return LeftScratch{VMID: s.VM.ID, Name: s.VM.Name, Host: s.VM.Host, Run: s.Run, UUID: s.UUID}
}

func (l LeftScratch) String() string {
	return fmt.Sprintf("%s, which run %s made to try an image out", cluster.VM{ID: l.VMID, Name: l.Name, Host: l.Host}, l.Run)
}
