package planning

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/config"
	"github.com/recast-sh/recast/cluster/observe"
	"github.com/recast-sh/recast/cluster/parking"
	"github.com/recast-sh/recast/cluster/shape"
	"github.com/recast-sh/recast/cluster/strategy"
	"github.com/recast-sh/recast/internal/words"
)

// Disks are those parked or attached again; of an unfinished replacement by their names on the node's VM.
func (n NodePlan) Disks() (out []DiskPlan) {
	if n.Found.Open() {
		return cluster.Each(n.Found.Parking.Record.Disks, func(d parking.ParkedDisk) DiskPlan {
			return DiskPlan{Key: d.Key, Volid: d.Volid}
		})
	}
	if !n.Strategy.SwapsInVM() {
		out = slices.Clone(n.Carried)
	}
	if n.System != nil {
		out = append(out, *n.System)
	}
	return out
}

// PlanAway plans, as far as it is known, a node whose VM or parking VM is on a host that does not answer.
func PlanAway(n *NodePlan, away *cluster.HostsAway) {
	n.Why = "it could not be read"
	n.Host = away.Names()
	if n.Found.Node != nil && n.Found.Node.ControlPlane {
		n.Role = cluster.ControlPlane
	}
	where := "its VM, or the parking VM with disks of it, is not among those that can be read"
	if vm, known := away.VM(n.Wanted.VMID); known {
		n.VMID, n.Host = vm.ID, vm.Host
		where = fmt.Sprintf("its VM %d is on %s", vm.ID, vm.Host)
	}
	n.Refused = []string{fmt.Sprintf("%s, and %s: bring %s back, or leave the node out with --exclude", where, away.Who(), away.Names())}
}

// AskLosses checks what leaves with the system disk: the plan shows what acceptLoss names and refuses the rest.
func (n *NodePlan) AskLosses() {
	c, leaves := strategy.Leaving(n.Strategy, n.Wanted, n.Found)
	if !leaves {
		return
	}
	for _, reason := range cluster.Texts(c.Irreplaceable()) {
		if n.Found.Open() && n.Strategy.From() == cluster.Serving && n.Strategy.System() != cluster.SystemKept {
			reason += fmt.Sprintf("; recast undo %s cancels the replacement instead", n.Node)
		}
		n.Refused = append(n.Refused, reason)
	}
	n.WillLose = append(n.WillLose, c.Accepted()...)
}

// addNow adds a disk of an unfinished replacement by its present name.
func (n *NodePlan) addNow(d parking.ParkedDisk, serial string, away *cluster.HostsAway) {
	park := n.Found.Parking
	now := park.Record.Locate(d, n.Found.VMOrZero(), park.VM, n.Found.Dangling)
	p := DiskPlan{Key: d.Key, Serial: serial, Volid: now.Volid, Size: now.Size, Where: now.Where}
	switch _, unread := away.VM(park.Record.VMID); {
	case now.Place == parking.Lost && unread:
		p.Volid, p.Where = "", fmt.Sprintf("not on parking VM %d; VM %d, which can't be read, may have it", park.VM.ID, park.Record.VMID)
	case now.Place == parking.Lost, now.Place == parking.Unnamed:
		p.Volid = ""
	}
	if d.System {
		n.System = &p
		return
	}
	n.Carried = append(n.Carried, p)
}

// Build returns the ID of the build that the node is being brought to.
func (n NodePlan) Build() string {
	if n.Restore != nil {
		return n.Restore.Build
	}
	return n.Wanted.Build.ID
}

func (n *NodePlan) PutBack(because string) {
	n.Strategy = cluster.PutBack
	n.Why += "; its old system disk is put back: " + because
}

// planReboot finishes an in-place upgrade of an earlier run; false: the machine answers, and its build is unknown.
func planReboot(n *NodePlan, o observe.Observation) bool {
	mark := n.Found.Node.Mark
	build, known := o.Build(n.Wanted, mark.Build)
	switch {
	case mark.Strategy.KeepsImage():
		n.Strategy = cluster.ApplyConfig
		n.Why = fmt.Sprintf("run %s rebooted it for its configuration and did not finish: recast waits for it, then checks everything again", mark.Run)
	case !known && n.Found.Machine != nil:
		return false
	default:
		n.Strategy = cluster.InPlace
		n.Why = fmt.Sprintf("run %s began to upgrade it in place and did not finish", mark.Run)
		if known {
			n.Wanted.Build = build
		}
	}
	n.Resume, n.Run, n.EtcdKept = true, mark.Run, true
	if n.Found.Node.ControlPlane {
		n.Role = cluster.ControlPlane
	}
	return true
}

// planResume finishes what a run began, with the recorded build; else the old system disk is put back.
func planResume(n *NodePlan, o observe.Observation) {
	rec := n.Found.Parking.Record
	n.Resume, n.Run, n.Strategy, n.Restore, n.Prepared = true, rec.Run, rec.Strategy, rec.Restore, rec.Prepared
	n.Why = fmt.Sprintf("run %s began to %s and did not finish", rec.Run, n.Strategy.Words().OnIt)
	n.VMID, n.UUID, n.Host = rec.VMID, rec.UUID, n.Found.Parking.VM.Host
	if !n.Addr.IsValid() {
		n.Addr = rec.Addr
	}
	for _, d := range rec.Disks {
		disk, err := cluster.ParseDisk(d.Key, cluster.JoinOptions(d.Volid, d.Options))
		if err != nil {
			n.Refused = append(n.Refused, fmt.Sprintf("record of run %s: %v", rec.Run, err))
			continue
		}
		n.addNow(d, disk.Option("serial"), o.Away)
	}
	mem, err := rec.ReadMemory(n.Found.Parking.VM)
	if err != nil {
		n.Refused = append(n.Refused, err.Error())
		return
	}
	if moved := cluster.OnOtherHosts(n.Found.VM, n.Found.Parking.VM, mem.VM.Host, o.Away, rec.VMID); moved != "" && (!rec.Strategy.Reshapes() || n.Found.VM == nil) {
		n.Refused = append(n.Refused, moved)
	}
	n.EtcdKept, n.Bootstraps, n.Rebuild = mem.EtcdKept, mem.Bootstraps, rec.Rebuild
	refuseOthersRebuild(n, o)
	if mem.ControlPlane {
		n.Role = cluster.ControlPlane
	}
	if o.First != "" && o.Rebuild == "" && rec.Rebuild == "" && n.Strategy.From() != cluster.Nowhere {
		n.Refused = append(n.Refused, "there was a cluster, since a run is unfinished in it: recast roll finishes that, once the cluster is back")
	}
	build, known := o.Build(n.Wanted, rec.Build)
	switch {
	case rec.PutBack:
		n.PutBack("someone asked for the old system disk")
	case !n.Strategy.BringsImage():
	case n.Strategy.From() == cluster.Nowhere && !known:
		n.Refused = append(n.Refused, fmt.Sprintf("no lock here has its build, %s: check that lock out, or recast undo %s says how to cancel it", words.Short(rec.Build), n.Node))
	case n.Strategy.From() == cluster.Nowhere && !n.Found.ConfigKnown && n.Found.Machine == nil:
		n.Refused = append(n.Refused, "its file in talos.machineConfigs is not the configuration that was to be applied: put it back as it was")
	case n.Strategy.From() == cluster.Nowhere:
	case !known:
		n.PutBack(fmt.Sprintf("no lock here has its build, %s", words.Short(rec.Build)))
	case n.Found.ConfigDamaged != nil && n.Found.Machine == nil:
		n.PutBack(n.Found.ConfigDamaged.Error())
	case !n.Found.ConfigKnown && n.Found.Machine == nil && n.Found.File != nil:
		n.PutBack(fmt.Sprintf("its file in talos.machineConfigs is not the configuration that run %s remembered", rec.Run))
	case !n.Found.ConfigKnown && n.Found.Machine == nil:
		n.PutBack("its machine configuration is only on the old system disk")
	}
	if known {
		n.Wanted.Build = build
	}
}

// planFile shows what a node's file would change if this strategy applies the file, and notes the file if not.
func (n *NodePlan) planFile() {
	const stays = "; this roll leaves the configuration as it is"
	file, applies := n.Found.File, n.AppliesConfig()
	switch {
	case file != nil && file.Err != nil && n.Strategy == "" && n.Found.Machine != nil && n.Paused == "" && !n.leavesConfig:
		n.Refused = append(n.Refused, "its file in talos.machineConfigs can't be compared with what it runs: "+file.Err.Error())
	case file == nil || !applies && !n.Strategy.Upgrades() || n.Resume && n.Strategy.KeepsImage():
	case n.Resume && applies && n.Found.ConfigIn == cluster.ConfigInJournal:
		if rec := n.Found.Parking.Record; rec.Config != file.Sum {
			n.Notes = append(n.Notes, fmt.Sprintf("its file in talos.machineConfigs is not applied yet: it gets the configuration that run %s remembered; what the file changes is shown once it is back", rec.Run))
		}
	case !applies && file.Err != nil:
		n.Notes = append(n.Notes, "its file in talos.machineConfigs was not compared with what it runs: "+file.Err.Error()+stays)
	case !applies && (n.Found.Machine == nil || len(file.Changes) == 0):
	case !applies:
		n.ConfigFile = new(file.ConfigFile)
		n.Notes = append(n.Notes, "its file in talos.machineConfigs differs from what it runs"+stays)
	case file.Err != nil:
		n.Refused = append(n.Refused, "its file in talos.machineConfigs can't be applied: "+file.Err.Error())
	default:
		n.Refused = append(n.Refused, n.refusedConfig(*file)...)
		for _, document := range file.Unknown {
			n.Notes = append(n.Notes, fmt.Sprintf("%s is of a kind that this recast does not know: it is passed on unchanged, and the node's Talos checks it", document))
		}
		if n.Found.VM != nil && n.Found.Machine != nil {
			if when := cluster.ArgsWait(*n.Found.VM, *n.Found.Machine, file.Changes); when != "" {
				n.Notes = append(n.Notes, when)
			}
		}
		shown := file.ConfigFile
		shown.Applied = true
		if n.Found.Machine == nil {
			shown.Uncompared = n.Found.NothingToCompare()
		}
		n.ConfigFile = &shown
	}
}

func (n NodePlan) NeedsSnapshot() bool {
	return n.Role == cluster.ControlPlane && !n.Resume && !n.OnlyTidies() && n.Rebuild == ""
}

// DiskPlan is one drive in a plan.
type DiskPlan struct {
	Key    string `json:"key"`
	Serial string `json:"serial,omitempty"`
	Volid  string `json:"volid"` // now; "": the disk has none, and Where says more
	Size   string `json:"size,omitempty"`
	// Where is the present place of a disk of an unfinished replacement: "scsi30 of parking VM 9900".
	Where string `json:"where,omitempty"`
	// NewSize is the size of the blank system disk if it differs: never less.
	NewSize string `json:"newSize,omitempty"`
}

// PlanEtcd applies the rules of etcd to a decision. auto falls back to in-place where they forbid another system disk.
func PlanEtcd(n *NodePlan, o observe.Observation, p Policy, d strategy.Decision, system cluster.Disk, systemErr error) strategy.Decision {
	onSystem, err := strategy.EtcdOnSystemDisk(*n.Found.Machine)
	if err != nil {
		d.Refused = append(d.Refused, err.Error())
		return d
	}
	n.EtcdKept = !onSystem && !n.etcdMoves(d.Strategy) || d.Strategy.KeepsVM()
	refused, warn := strategy.EtcdRules(len(o.ControlPlanes()), !n.EtcdKept, n.Found.Machine.TypeInit, d.Strategy, p.AcceptOutage)
	against, outage := strategy.EtcdRules(len(o.ControlPlanes()), false, false, cluster.InPlace, p.AcceptOutage)
	if len(refused) > 0 && len(against) == 0 && n.Wanted.Strategy == cluster.Auto && !d.Strategy.KeepsVM() {
		because := refused[0]
		n.EtcdKept = true
		w := n.Wanted
		w.Strategy = cluster.InPlace
		lifted := append(d.ToRecreate, cluster.Obstacle{Text: because})
		d = strategy.Decide(w, n.Found, o, system, systemErr)
		d.ToRecreate = lifted
		d.Why = "in-place: a new system disk is impossible (" + because + ")"
		refused, warn = nil, outage
	}
	d.Refused = append(d.Refused, refused...)
	d.Notes = append(d.Notes, warn...)
	return d
}

// planApplyConfig changes the configuration only. One without a reboot is tried first: Talos takes it back by itself.
func planApplyConfig(n *NodePlan, o observe.Observation, p Policy) {
	n.Strategy, n.EtcdKept, n.Why = cluster.ApplyConfig, true, "apply-config: only its machine configuration differs"
	if n.Drift.IsImage() {
		n.Why = "apply-config: --what config leaves its image as it is"
	}
	if file := n.Found.File; len(file.Reboot) == 0 {
		n.Why += "; it needs no reboot"
		if made := formatted(file.Changes); len(made) > 0 {
			n.Notes = append(n.Notes, fmt.Sprintf("Talos makes and formats %s at once: if %s is not healthy then, it takes its configuration back, but not that",
				strings.Join(made, ", "), n.Node))
		}
	} else {
		n.Why += "; it needs a reboot for " + strings.Join(file.Reboot, ", ")
		c := strategy.Candidate{Wanted: n.Wanted, VM: *n.Found.VM, Machine: *n.Found.Machine, Found: n.Found, Observation: o}
		n.Refused = append(n.Refused, cluster.Texts(c.Doubled())...)
	}
	if n.Role == cluster.ControlPlane {
		refused, warn := strategy.EtcdRules(len(o.ControlPlanes()), false, false, cluster.ApplyConfig, p.AcceptOutage)
		n.Refused, n.Notes = append(n.Refused, refused...), append(n.Notes, warn...)
	}
}

// formatted lists the documents that changes add and for which Talos formats disks (siderolabs/talos v1.14.1,
// pkg/machinery/config/types/block and …/storage).
func formatted(changes []config.Change) (documents []string) {
	for _, c := range changes {
		switch kind, _, _ := strings.Cut(c.Document, " "); kind {
		case "VolumeConfig", "UserVolumeConfig", "RawVolumeConfig", "SwapVolumeConfig", "LVMVolumeGroupConfig", "LVMLogicalVolumeConfig", "RAIDArrayConfig":
			if c.Kind == config.Added && c.Path == "" {
				documents = append(documents, c.Document)
			}
		}
	}
	return documents
}

// staysUp says whether the node gets only what needs no reboot.
func (n NodePlan) staysUp() bool {
	keeps := n.Strategy.KeepsImage() && n.Found.File != nil && len(n.Found.File.Reboot) == 0
	return (n.Strategy.Reshapes() || keeps) && !stopsVM(n)
}

// AppliesConfig says whether the node gets its file of talos.machineConfigs.
func (n NodePlan) AppliesConfig() bool {
	return n.Strategy.BringsConfig() || n.Strategy.Upgrades() && n.WithConfig
}

func (n *NodePlan) refusedConfig(file cluster.FoundFile) []string {
	out := n.Found.AgainstFile()
	if file.Beside != "" && len(file.Identity) > 0 {
		return out
	}
	for _, what := range file.Identity {
		out = append(out, fmt.Sprintf("its file in talos.machineConfigs would change %s: recast never does that to a node that runs: is it the file of another node, or of another cluster?", what))
	}
	return append(out, n.oneWay(file)...)
}

// oneWay says what a file newly brings with which no later roll could recreate the node, or recast do anything.
func (n *NodePlan) oneWay(file cluster.FoundFile) []string {
	c := strategy.Candidate{Wanted: n.Wanted, VM: n.Found.VMOrZero(), Found: n.Found}
	if n.Found.Machine != nil {
		c.Machine = *n.Found.Machine
	} else if n.Strategy.From() == cluster.Nowhere {
		c.VM = shape.New(n.Wanted, n.VMID, "")
	}
	out := cluster.Each(c.SealedBy(placed(c.Machine, file)), func(text string) string {
		return "with its file in talos.machineConfigs " + text
	})
	if file.Omni && !slices.Contains(c.Machine.Omni(), cluster.OmniDocument) {
		out = append(out, fmt.Sprintf("its file in talos.machineConfigs has %s, which joins the machine to Omni, and a roll is then refused: remove that document", cluster.OmniDocument))
	}
	for _, arg := range addedArgs(file.Changes) {
		if cluster.GivesConfig(arg) {
			out = append(out, fmt.Sprintf("its file in talos.machineConfigs adds the kernel argument %s, with which the node could neither be recreated nor reimaged from then on: remove it", cluster.ArgName(arg)))
		}
	}
	return out
}

func addedArgs(changes []config.Change) (out []string) {
	for _, c := range changes {
		if c.Document == config.MainDocument && c.Kind != config.Removed && strings.HasPrefix(c.Path, "machine.install.extraKernelArgs") {
			out = append(out, strings.FieldsFunc(c.Wanted, func(r rune) bool { return strings.ContainsRune(`[], "'`, r) })...)
		}
	}
	return out
}

// placed returns how a file encrypts volumes, without the locks to STATE of those that may go with STATE.
func placed(m cluster.Machine, file cluster.FoundFile) []cluster.Encryption {
	out := slices.Clone(file.Encryption)
	for i, e := range out {
		if len(m.DisksWith(e.Volume)) == 0 && goesWithSystem(m, file, e.Volume) {
			out[i].LockToState = false
		}
	}
	return out
}

// goesWithSystem says whether a volume that a file makes may be on the system disk, by the file's selector for it.
func goesWithSystem(m cluster.Machine, file cluster.FoundFile, volume string) bool {
	if s, is := cluster.Find(file.Selectors, func(s cluster.DiskSelector) bool { return s.ID == volume }); is {
		return s.Match == "system_disk" || s.System != ""
	}
	document := cluster.Volume{Label: volume}.Document()
	return m.SystemDisk == "" || slices.ContainsFunc(file.Changes, func(c config.Change) bool {
		return c.Document == document && c.Path == "provisioning.diskSelector.match" && c.Wanted == "system_disk"
	})
}

// refuseInit refuses a file of machine.type init for a machine whose etcd directory is empty, or may be.
func (n *NodePlan) refuseInit() {
	file := n.Found.File
	if file == nil || !file.TypeInit {
		return
	}
	from := n.Strategy.From()
	if from == cluster.Nowhere || from == cluster.Blank || takesAway(*n) || n.Strategy.Replaces() && n.Found.Machine == nil && !n.EtcdKept {
		n.Refused = append(n.Refused, "its file in talos.machineConfigs is of machine.type init: with an empty etcd directory "+strategy.BeginsAlone+
			" with it, whatever others there are: set machine.type: controlplane in it")
	}
}

// Configured lists the nodes with their own configuration that wait for nothing: no journal needs to keep theirs.
func (p Plan) Configured() (nodes []string) {
	for _, n := range p.Nodes {
		if f := n.Found; f.VM != nil && f.Machine != nil && f.Blank == nil && !f.Open() && (f.Node == nil || f.Node.Mark == nil || !f.Node.Mark.Strategy.KeepsImage()) {
			nodes = append(nodes, n.Node)
		}
	}
	return nodes
}

// Create makes the plan's node one that a roll creates, unless something of the node already exists.
func Create(n *NodePlan) {
	w := n.Wanted
	n.Strategy, n.Why, n.EtcdKept = cluster.Create, "create: it does not exist yet", true
	if w.Surge {
		n.Why = "create: it serves while workers are away, and is removed after the last one is back"
	}
	n.Host, n.Addr, n.VMID = w.Shape.Host, w.Addr, w.VMID
	for _, trace := range n.Found.Absent.Traces {
		n.Refused = append(n.Refused, "it is in recast.yaml, and parts of it exist: "+trace)
	}
	n.Refused = append(n.Refused, n.Found.Absent.Against...)
	n.Refused = append(n.Refused, strategy.BringsConfig(w.Build)...)
}

func planCreate(n *NodePlan, o observe.Observation) {
	w := n.Wanted
	Create(n)
	for _, f := range o.Found {
		if f.Name != n.Node && f.Addr.IsValid() && f.Addr == n.Addr {
			n.Refused = append(n.Refused, fmt.Sprintf("its address is to be %s, which is that of node %s", n.Addr, f.Name))
		}
	}
	switch file := n.Found.File; {
	case file == nil:
		n.Refused = append(n.Refused, "its machine configuration is not in talos.machineConfigs: a new node has nothing else to get it from")
	case file.Err == nil:
		n.Role = file.Role
		if n.Node == o.First {
			n.Bootstraps, n.Why = true, "bootstrap: the cluster begins with it"
			n.Notes = append(n.Notes, n.Found.FileHardlyCompared()...)
		} else if file.Beside == "" || file.Beside == cluster.Talosconfig {
			n.Refused = append(n.Refused, "no node shows its machine configuration: whether its file in talos.machineConfigs is of this cluster can't be seen")
		}
	}
	switch {
	case n.Bootstraps && n.Role != cluster.ControlPlane:
		n.Refused = append(n.Refused, "a cluster begins with a control plane, and its machine configuration is that of a worker")
	case n.Role == cluster.ControlPlane && len(o.ControlPlanes()) == 0:
		n.Refused = append(n.Refused, "it is a control plane, and there is no other: recast bootstrap makes a cluster")
	}
	n.Refused = append(n.Refused, o.TracesOfCluster(n.Node)...)
	vm := shape.New(w, n.VMID, "")
	n.Notes = append(n.Notes, "its VM: "+describe(vm, w))
	if d, err := cluster.ParseDisk(w.SystemDisk, vm.Config[w.SystemDisk]); err == nil {
		if n.Space = o.NewDisk(w, n.Host, d); n.Space == nil {
			n.Refused = append(n.Refused, "Proxmox has no storage "+d.Storage())
		}
	}
}

func describe(vm cluster.VM, w cluster.Wanted) string {
	keys := cluster.Where(slices.Sorted(maps.Keys(vm.Config)), func(key string) bool {
		return !cluster.IsDiskKey(key) && key != "name" && key != "smbios1" && key != "ide0"
	})
	out := cluster.Each(keys, func(key string) string { return key + " " + vm.Config[key] })
	for _, d := range w.Shape.Disks {
		size := d.SizeGiB
		if d.Key == w.SystemDisk {
			size = w.SystemGiB
		}
		out = append(out, strings.Join(append([]string{d.Key + " on " + d.Storage, fmt.Sprintf("size=%dG", size)}, d.Options...), ","))
	}
	return strings.Join(out, "; ")
}

// newNumbers gives new VMs the first free numbers that recast does not keep; the creation shows if they still are.
func (p worldOf) newNumbers() {
	next := cluster.VMID(100)
	taken := func(id cluster.VMID) bool {
		return slices.Contains(p.o.ParkingIDs, id) || slices.ContainsFunc(p.o.VMs, func(vm cluster.VM) bool { return vm.ID == id }) ||
			slices.ContainsFunc(p.Nodes, func(n NodePlan) bool { return n.VMID == id })
	}
	for i := range p.Nodes {
		n := &p.Nodes[i]
		if n.Strategy.From() != cluster.Nowhere || n.VMID != 0 || n.Resume {
			continue
		}
		for taken(next) {
			next++
		}
		n.VMID = next
	}
}

// planPrepared decides whether the new system disk is made from a disk image before the drain, as images.boot asks.
func planPrepared(n *NodePlan, system cluster.Disk) {
	if n.Wanted.Boot != cluster.BootFromDisk && n.Wanted.Boot != cluster.BootFromAuto {
		return
	}
	against := againstPrepared(*n, system)
	switch {
	case len(against) == 0:
		n.Prepared = n.Wanted.Build.DiskName
		n.Notes = append(n.Notes, fmt.Sprintf("its new system disk is made from %s while it serves: its VM boots that and installs nothing, so machine.install of its configuration does nothing", n.Prepared))
	case n.Wanted.Boot == cluster.BootFromDisk:
		n.Refused = append(n.Refused, fmt.Sprintf("its system disk can't be made from a disk image: %s; with images.boot: auto it would boot the ISO", strings.Join(against, "; ")))
	default:
		n.Notes = append(n.Notes, "it boots the ISO, since "+strings.Join(against, "; "))
	}
}

// entryFree is the first Talos that boots though the EFI variables name no present entry (talos#12300, #12312).
const entryFree = "v1.11.6"

// needsEntry: the boot loader's default entry has to exist. Pre-releases of v1.12.0 came before the correction.
func needsEntry(talos string) bool {
	v, err := cluster.ParseVersion(talos)
	fixed, _ := cluster.ParseVersion(entryFree)
	return err != nil || v.Before(fixed) || strings.HasPrefix(talos, "v1.12.0-")
}

// againstPrepared says why the node can't run from a disk that is made from the disk image. Such an image has all that
// an installer does: its boot loader enrolls keys for Secure Boot, and its first boot makes volumes and encrypts them.
func againstPrepared(n NodePlan, system cluster.Disk) (against []string) {
	b := n.Wanted.Build
	if n.Found.VM.Config["bios"] != "ovmf" {
		against = append(against, "its VM boots by BIOS, and what GRUB in a disk image boots can't be compared with the lock (bios: ovmf boots the image that was)")
	}
	switch {
	case b.DiskName == "":
		against = append(against, fmt.Sprintf("no disk image of schematic %s is made: %s", n.Wanted.Schematic, b.NoDisk))
	case len(n.Wanted.DiskStorages) == 0:
		against = append(against, fmt.Sprintf("%s sees no storage of images.disk.storage that takes disk images (content import, Proxmox 8.3)", n.Found.VM.Host))
	}
	// The variables outlive the disk, and no installer writes others: see rolling.NoteEntry.
	entry := strings.ToLower("talos-" + b.TalosVersion + ".efi")
	if m := n.Found.Machine; needsEntry(b.TalosVersion) && n.Found.VM.Config["efidisk0"] != "" && (m == nil || m.NextBoot != entry) {
		against = append(against, fmt.Sprintf("its EFI variables don't name the boot entry %s that the disk image has, and Talos before %s then neither reboots nor is upgraded", entry, entryFree))
	}
	if bytes := max(int64(system.SizeBytes()), int64(max(n.Wanted.SystemGiB, 0))<<30); b.DiskBytes > bytes {
		against = append(against, fmt.Sprintf("the disk in %s has %s, and its system disk %s", b.DiskName, cluster.Size(b.DiskBytes), cluster.Size(bytes)))
	}
	return against
}

// frees is what the node's roll gives back to a storage at its end. What a thin disk has is unknown: it counts as none.
func (n NodePlan) frees(s cluster.Storage) (bytes int64) {
	for _, f := range n.Frees {
		d := cluster.Disk{Volid: f.Volid, Options: []string{"size=" + f.Size}}
		if s.Thick && d.Storage() == s.Name {
			bytes += int64(d.SizeBytes())
		}
	}
	return bytes
}

// tellOfVM notes in the plan what else a new system disk changes in the VM. system is the old system disk.
func (n *NodePlan) tellOfVM(disks []cluster.Disk, system cluster.Disk) {
	vm := *n.Found.VM
	if n.Strategy.DeletesVM() {
		n.Renewed = vm.MadeAnew()
		for _, d := range disks {
			if d.Key != system.Key && d.Owner == vm.ID && !d.CDROM && !d.CSI() {
				n.Renewed = append(n.Renewed, "volid of "+d.Key)
			}
		}
	}
	note := func(format string, args ...any) { n.Notes = append(n.Notes, fmt.Sprintf(format, args...)) }
	if set := n.Found.BlankSetting(n.Wanted.Build); set != nil {
		note("its blank machine gets the node's address from the VM's cloud-init drive: %s is %s for that boot, and as before at the end", set.Key, set.Value)
	}
	if vm.Config["protection"] == "1" {
		note("the VM's protection is lifted meanwhile and set again at the end")
	}
	if cd := cluster.CDKey(vm.Config, disks); vm.Config[cd] != "" {
		if d, err := cluster.ParseDisk(cd, vm.Config[cd]); err == nil && d.Volid != "none" {
			if _, ours := cluster.BootISO(d); !ours {
				note("%s %sis empty at the end: %s is taken out", cd, map[bool]string{true: "gets the boot ISO and "}[n.Prepared == ""], d.Volid)
			}
		}
	}
	media, _ := vm.OtherMedia() // unreadable ones are refused
	for _, key := range slices.Sorted(maps.Keys(media)) {
		note("%s is empty until its node is healthy: %s is taken out, so that it does not configure the blank machine", key, media[key].Volid)
	}
	if boot := vm.Config["boot"]; strings.TrimSpace(boot) != "" && cluster.BootDevices(boot) == nil {
		note("its boot order of the old kind (%s) becomes one by device, its system disk first", boot)
	}
	have, want := system.SizeBytes(), uint64(max(n.Wanted.SystemGiB, 0))<<30
	switch {
	case n.System == nil || want == 0 || have == 0 || want == have:
	case want < have:
		note("the new system disk has %s like the old one, not the %dG wanted: recast never shrinks a disk", system.Option("size"), n.Wanted.SystemGiB)
	default:
		n.System.NewSize = fmt.Sprintf("%dG", n.Wanted.SystemGiB)
	}
}

// numbers refuses the nodes whose parking VM can get no number, after each node before them in the plan has taken one:
// a parking VM keeps its number as long as it holds disks. One that is taken later shows when the VM is created.
func (p worldOf) numbers() {
	free := slices.DeleteFunc(slices.Clone(p.o.ParkingIDs), func(id cluster.VMID) bool {
		return slices.ContainsFunc(p.o.VMs, func(vm cluster.VM) bool { return vm.ID == id })
	})
	var need []*NodePlan
	for i := range p.Nodes {
		n := &p.Nodes[i]
		replaces := n.Strategy.Installs() || n.Strategy.VM() == cluster.VMGone || stopsVM(*n)
		if replaces && !n.Resume && len(n.Refused) == 0 && n.Found.Parking == nil {
			need = append(need, n)
		}
	}
	for _, n := range need[min(len(free), len(need)):] {
		n.Refused = append(n.Refused, fmt.Sprintf("no VMID is left for its parking VM: this roll takes %d, and %d of proxmox.vmids are free: widen it, or leave nodes out with --exclude",
			len(need), len(free)))
	}
}

// space refuses nodes whose new system disk does not fit with all that the plan takes: old disks stay parked.
func (p worldOf) space() {
	var disks []observe.NewDisk
	for _, n := range p.Nodes {
		if n.Space != nil && !n.Resume {
			d := *n.Space
			d.Freed = n.frees(d.Storage)
			disks = append(disks, d)
		}
	}
	for _, use := range observe.SpaceUses(disks, p.o.Rooms) {
		for i, lack := range use.Lacks(max(1, p.MaxUnavailable)) {
			if lack == "" {
				continue
			}
			at := slices.IndexFunc(p.Nodes, func(n NodePlan) bool { return n.Node == use.Disks[i].Node })
			p.Nodes[at].Refused = append(p.Nodes[at].Refused, lack)
		}
		p.Warn = append(p.Warn, use.Warn()...)
	}
}

// planReshape gives a node whose system is right another VM around it.
func planReshape(n *NodePlan, o observe.Observation, p Policy) {
	n.Strategy, n.EtcdKept, n.Why = cluster.Reshape, true, "reshape: only its VM is not as wanted"
	if len(n.Found.Shape.At(shape.Off)) == 0 {
		n.Why += "; it stays up"
		return
	}
	n.Why += "; its VM has to be off"
	if n.Role == cluster.ControlPlane {
		refused, warn := strategy.EtcdRules(len(o.ControlPlanes()), false, false, cluster.Reshape, p.AcceptOutage)
		n.Refused, n.Notes = append(n.Refused, refused...), append(n.Notes, warn...)
	}
}

func planShape(n *NodePlan, o observe.Observation, p Policy) {
	if n.Strategy.From() != cluster.Serving || !n.Strategy.BringsShape() || n.Resume || !p.does(VM) {
		return
	}
	n.VM = n.Found.Shape
	planMove(n)
	for _, d := range n.VM.At(shape.Never) {
		n.Refused = append(n.Refused, fmt.Sprintf("its VM is not as recast.yaml wants it (%s): %s", d, d.Why))
	}
	if n.Strategy.Replaces() || len(n.Found.Shape) == 0 {
		return // the same obstacles block both
	}
	c := strategy.Candidate{Wanted: n.Wanted, VM: *n.Found.VM, Machine: *n.Found.Machine, Found: n.Found, Observation: o}
	if len(n.VM.At(shape.Off)) == 0 {
		if lock := n.Found.VM.Lock; lock != "" {
			n.Refused = append(n.Refused, fmt.Sprintf("the VM is locked (%s): wait until that task has ended", lock))
		}
		return
	}
	for _, reason := range slices.Concat(cluster.Texts(c.AgainstReshape()), o.Hidden(*n.Found.VM)) {
		if !slices.ContainsFunc(n.Refused, func(said string) bool { return strings.HasSuffix(said, reason) }) { // auto prefixes strategies
			n.Refused = append(n.Refused, reason)
		}
	}
}

// planMove plans a node whose running VM is migrated first, on its new host. Its old system disks stay on the old one.
func planMove(n *NodePlan) {
	for _, d := range n.VM.At(shape.Off) { // disks can be handed over on one host only
		if d.Why != "" && n.Strategy.Replaces() {
			n.Refused = append(n.Refused, fmt.Sprintf("its VM is not as recast.yaml wants it (%s): %s. Disks can be handed over on one host only: recast roll --what vm first, then roll again", d, d.Why))
		}
	}
	to := n.VM.Moves(shape.Live)
	if to == "" {
		return
	}
	n.Host = to
	if strings.HasPrefix(strings.TrimPrefix(n.Found.VM.Config["cpu"], "cputype="), "host") {
		n.Notes = append(n.Notes, fmt.Sprintf("its CPU type is host: whether the processors of %s are like those of %s enough for a guest that runs, recast can't see", to, n.Found.VM.Host))
	}
	if n.Space != nil {
		n.Space.Host = to
	}
	n.Found.Parking, n.Found.Elsewhere = observe.TakeParking(n.Found.Parkings(), func(p parking.Parking) bool { return p.VM.Host == to })
}

// stopsVM says whether the VM is switched off to get its shape, by whatever strategy.
func stopsVM(n NodePlan) bool { return len(n.VM.At(shape.Off)) > 0 }

func (n NodePlan) FreesOn() (out []string) {
	for _, f := range n.Frees {
		if storage, _, ok := strings.Cut(f.Volid, ":"); ok && !slices.Contains(out, storage) {
			out = append(out, storage)
		}
	}
	if !n.Wanted.Surge {
		return out
	}
	for _, d := range n.Wanted.Shape.Disks { // the surge node's system disk, when the node is removed
		if d.Storage != "" && !slices.Contains(out, d.Storage) {
			out = append(out, d.Storage)
		}
	}
	return out
}

// planFrees shows which old system disks are superseded once the node's roll has succeeded: all but the newest
// keep, counting the present one. Disks that were given up (KeptDisk.GivenUp) are no way back: they are superseded
// and do not count. An in-place upgrade supersedes no disk; it only completes what an earlier roll began to free.
func (n *NodePlan) planFrees(o observe.Observation, keep int) {
	p := n.Found.Parking
	if p == nil || len(n.Refused) > 0 {
		return
	}
	replaces := n.Strategy.Replaces()
	if !replaces && !n.Strategy.KeepsVM() {
		return
	}
	there := len(cluster.Where(p.Record.Kept, func(k parking.KeptDisk) bool {
		_, found := p.VM.Config[k.Key]
		return found && !k.GivenUp && !k.Removed
	}))
	for _, k := range p.Record.Kept {
		if k.Removed {
			continue // no roll frees a disk of a removed node
		}
		f := parking.FreePlan{Parking: p.VM.ID, Key: k.Key, Run: k.Run, GivenUp: k.GivenUp, Talos: k.Talos}
		disk, against := p.Freeable(k, o.VMs)
		f.Volid, f.Size = disk.Volid, disk.Option("size")
		switch superseded := replaces && (f.Volid == "" || k.GivenUp || there >= max(1, keep)); {
		case !superseded && !k.Going:
			continue
		case !k.Going && len(against) > 0:
			n.Notes = append(n.Notes, fmt.Sprintf("%s stays, although it is superseded: %s", f, strings.Join(against, "; ")))
		default:
			n.Frees = append(n.Frees, f)
		}
		if f.Volid != "" && !k.GivenUp {
			there--
		}
	}
}
