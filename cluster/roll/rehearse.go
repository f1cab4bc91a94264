package roll

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/exchange"
	"github.com/recast-sh/recast/cluster/parking"
	"github.com/recast-sh/recast/cluster/planning"
	"github.com/recast-sh/recast/cluster/rolling"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/step"
	"github.com/recast-sh/recast/internal/wait"
	"github.com/recast-sh/recast/internal/words"
)

// Rehearsed is what came of trying one image out.
type Rehearsed struct {
	Host     string `json:"host"`
	Firmware string `json:"firmware"` // in words: "OVMF, q35, CPU host"
	planning.Medium
	Nodes  []string   `json:"nodes"`            // that are to boot it like that
	Addr   netip.Addr `json:"address,omitzero"` // where it answered
	Unseen string     `json:"unseen,omitempty"` // why nobody could look at what it booted; "": it was as wanted
}

func (r Rehearsed) String() string {
	if r.Unseen != "" {
		return fmt.Sprintf("a VM like those of the nodes starts with it; what it booted was not seen: %s", r.Unseen)
	}
	return fmt.Sprintf("it booted to maintenance mode at %s, and is what its name says", r.Addr)
}

// Rehearser tries out what the nodes of one plan will boot.
type Rehearser struct {
	// Proxmox checks that the claim is still ours before each change: see Held.Guard.
	Proxmox     cluster.Proxmox
	Maintenance cluster.Maintenance
	Kube        cluster.NodeReader
	Journal     rolling.Journal

	Cluster string
	Run     string         // ID of the run
	VMIDs   []cluster.VMID // for scratch VMs, the last free one is taken first
	Timing  cluster.Timing
	Say     func(path, text string) // receives what a running step waits for; never nil
	// HandedOver reports whether the journal of an earlier run has the fact; nil: none is known.
	HandedOver func(cluster.HandsOver) (bool, error)

	mu      sync.Mutex
	results []Rehearsed
}

// Results returns the results of the trials.
func (r *Rehearser) Results() []Rehearsed {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.results)
}

// Steps returns the steps before any node is looked at: scratch VMs of killed runs are deleted, what a
// replacement relies on is proved, and what the nodes will boot is tried out.
func (r *Rehearser) Steps(p planning.Plan) []step.Step {
	var steps []step.Step
	if len(p.Scratch) > 0 {
		steps = append(steps, r.clear(p.Scratch))
	}
	all := step.Step{ID: "prove", Title: "prove on scratch VMs that a node's VM can be created again, and its disks handed over"}
	if len(p.Trials) > 0 {
		all = step.Step{ID: "rehearse", Code: fault.RehearsalFailed, Title: "try out on scratch VMs what the nodes will boot"}
	}
	byHost := r.proofs(p, "roll/"+all.ID)
	for _, t := range p.Trials {
		byHost[t.Host] = append(byHost[t.Host], r.try(t))
	}
	if len(byHost) == 0 {
		return steps
	}
	branches := cluster.Each(slices.Sorted(maps.Keys(byHost)), func(host string) step.Step {
		return step.Step{ID: host, Title: "on " + host, Steps: step.List(byHost[host]...)}
	})
	all.Limit, all.Steps = len(branches), step.List(branches...)
	return append(steps, all)
}

func (r *Rehearser) clear(left []planning.LeftScratch) step.Step {
	pruner := r.pruner()
	for _, l := range left {
		pruner.VMs = append(pruner.VMs, ScratchVerdict{LeftScratch: l})
	}
	return step.Step{
		ID: "clear-scratch", Title: "delete scratch VMs that a run has left", Risk: step.Destructive,
		Steps: func(context.Context) ([]step.Step, error) { return pruner.Steps(), nil },
	}
}

func (r *Rehearser) try(t planning.Trial) step.Step {
	run := &trial{Trial: t, Rehearser: r}
	s := step.Step{
		ID: t.ID, Kind: "try-boot", Title: fmt.Sprintf("boot %s with %s, as %s will", t.Medium, t.Firmware, strings.Join(t.Nodes, ", ")),
		Skip: run.done, Do: run.do, Yields: true,
	}
	if t.Addr.IsValid() {
		s.Uses = []string{"rehearse/" + t.Addr.Addr().String()}
	}
	return s
}

type trial struct {
	planning.Trial
	*Rehearser
	scratchVM // zero until it is created
}

func (t *trial) boot(ctx context.Context) (Rehearsed, error) {
	was := Rehearsed{Host: t.Host, Firmware: t.Firmware, Medium: t.Medium, Nodes: t.Nodes}
	if err := errors.Join(t.requireFreeAddress(ctx), t.requireScratchRoom(ctx)); err != nil {
		return was, err
	}
	vm, err := t.create(ctx)
	if err != nil {
		return was, err
	}
	if err := t.requireWhole(vm); err != nil {
		return was, err
	}
	if err := t.Proxmox.Start(ctx, vm); err != nil {
		return was, fault.WithHint(fmt.Errorf("start %s: %w", vm, err), "%s would not start as a new VM either: no node was touched", strings.Join(t.Nodes, ", "))
	}
	return was, t.see(ctx, vm, &was)
}

func (t *trial) do(ctx context.Context) error {
	was, err := t.boot(ctx)
	if err = t.remove(ctx, err); err != nil {
		return err
	}
	t.mu.Lock()
	t.results = append(t.results, was)
	t.mu.Unlock()
	return fault.Prefix("journal", t.Journal.Put(t.key(), was))
}

// done asks the journal: the scratch VM is deleted, so the world can't tell.
func (t *trial) done(context.Context) (string, error) {
	var was Rehearsed
	found, err := t.Journal.Get(t.key(), &was)
	if err != nil || !found || was.Medium != t.Medium || was.Firmware != t.Firmware {
		return "", fault.Prefix("journal", err)
	}
	return was.String(), nil
}

func (t *trial) key() string {
	sum := sha256.Sum256([]byte(t.Host + "/" + t.ID))
	return "rehearsed/" + hex.EncodeToString(sum[:6])
}

// scratchTimeout limits each part that an interruption does not cancel: the wait for the tasks of a
// scratch VM, and its deletion.
const scratchTimeout = 2 * time.Minute

func (t *trial) path() string { return "roll/rehearse/" + t.Host + "/" + t.ID }

func (t *trial) wait(ctx context.Context, name string, look wait.Look) error {
	return t.Timing.Await(ctx, wait.For{Name: name, Timeout: t.Timing.Boot, Seen: func(seen string) { t.say(name + ": " + seen) }}, look)
}

// agentExtension reports the machine's addresses to its host. It does so in maintenance mode too:
// none of its dependencies needs a configuration.
const agentExtension = "qemu-guest-agent"

func (t *trial) hasAgent() bool {
	return slices.ContainsFunc(t.Model.Wanted.Build.Extensions, func(e cluster.LockedExtension) bool { return e.Name == agentExtension })
}

// scratchMargin is the memory in bytes that must stay free on the host beside the scratch VM.
const scratchMargin = 512 << 20

// scratchBytes is more than EFI variables or a cloud-init drive need (528 KiB and 4 MiB).
const scratchBytes = 16 << 20

// requireScratchRoom refuses if a scratch VM would take memory from the running nodes: a host
// without free memory kills one of its VMs.
func (t *trial) requireScratchRoom(ctx context.Context) error {
	host := t.Host
	need := int64(t.memoryMiB())<<20 + scratchMargin
	free, err := t.Proxmox.FreeMemory(ctx, host)
	switch {
	case err != nil:
		return fmt.Errorf("look at the memory of %s: %w", host, err)
	case free < need:
		return fault.WithHint(fault.Refusedf("%s has %s of memory free, and a scratch VM is to leave %s beside its %s", host, cluster.Size(free), cluster.Size(scratchMargin), cluster.Size(need-scratchMargin)),
			"move a VM to another host, or roll without --rehearse: no node was touched")
	}
	room := cluster.RoomOn(ctx, t.Proxmox, host)
	if room.Err != nil {
		return fmt.Errorf("look at the storages of %s: %w", host, room.Err)
	}
	takes := t.takes()
	for _, name := range slices.Sorted(maps.Keys(takes)) {
		i := slices.IndexFunc(room.Storages, func(s cluster.StorageRoom) bool { return s.Name == name })
		if i < 0 || !room.Storages[i].Active || room.Storages[i].Free < takes[name] {
			return fault.WithHint(fault.StorageFull.Refusedf("storage %s on %s has no room for the drives of a scratch VM, which take %s", name, host, cluster.Size(takes[name])),
				"pvesm status there says how it stands; recast prune frees old system disks")
		}
	}
	return nil
}

func (t *trial) takes() map[string]int64 {
	bytes := map[string]int64{}
	if d, err := cluster.ParseDisk("efidisk0", t.Model.Found.VM.Config["efidisk0"]); err == nil {
		bytes[d.Storage()] += scratchBytes
	}
	if t.Addr.IsValid() {
		bytes[t.cloudInitStorage()] += scratchBytes
	}
	if t.Disk != "" {
		if d, err := t.systemDisk(); err == nil { // config refuses what can't be read
			bytes[d.Storage()] += t.Model.Wanted.Build.DiskBytes
		}
	}
	return bytes
}

// requireWhole refuses a disk that is smaller than the one in its image, as grow of a prepared disk
// does: more of it is seen once the scratch VM has booted it.
func (t *trial) requireWhole(vm cluster.VM) error {
	if t.Disk == "" {
		return nil
	}
	key, want := t.Model.System.Key, t.Model.Wanted.Build.DiskBytes
	d, err := cluster.ParseDisk(key, vm.Config[key])
	if err == nil && d.SizeBytes() < uint64(max(want, 0)) {
		err = fault.DiskMismatch.Refusedf("it has %d bytes, and the disk in %s has %d: it was not imported whole", d.SizeBytes(), t.Disk, want)
	}
	return fault.WithHint(fault.Prefix(fmt.Sprintf("%s of %s", key, vm), err), "no node was touched")
}

// requireFreeAddress refuses a fixed address that a node has, or at which anything answers, even
// with a refusal. If that can't be checked, nothing is tried out.
func (t *trial) requireFreeAddress(ctx context.Context) error {
	if !t.Addr.IsValid() {
		return nil
	}
	addr := t.Addr.Addr()
	taken := func(by string) error {
		return fault.WithHint(fault.Refusedf("%s is to be the address of a scratch VM, and %s has it", addr, by),
			"roll.rehearse.addresses must be unused, and DHCP must not give them out; a firewall on the way that refuses connections looks like a machine: no node was touched")
	}
	nodes, err := t.Kube.Nodes(ctx)
	if err != nil {
		return fmt.Errorf("see whether a node has %s: %w", addr, err)
	}
	for _, n := range nodes {
		if slices.Contains(n.Addresses, addr) {
			return taken("node " + n.Name)
		}
	}
	by, err := t.Maintenance.Taken(ctx, addr)
	switch {
	case err != nil:
		return fault.WithHint(err, "without that address in roll.rehearse.addresses DHCP gives one; roll --rehearse=false does without a rehearsal: no node was touched")
	case by != "":
		return taken(by)
	}
	return nil
}

// see waits until the scratch VM is in maintenance mode, and checks what it has booted. If its
// address can't be found, see only checks that it stays on.
func (t *trial) see(ctx context.Context, vm cluster.VM, was *Rehearsed) error {
	var blind error
	where := func(context.Context) ([]netip.Addr, error) { return []netip.Addr{t.Addr.Addr()}, nil }
	switch {
	case t.Addr.IsValid():
	case t.hasAgent():
		where = func(ctx context.Context) ([]netip.Addr, error) {
			addrs, err := t.Proxmox.GuestAddrs(ctx, vm)
			if fault.KindOf(err) == fault.Refused {
				blind = err
			}
			return addrs, err
		}
	default:
		was.Unseen = "the image has no " + agentExtension + " to tell its address, and roll.rehearse.addresses has none for it"
		return t.staysOn(ctx, vm)
	}
	m, at, err := t.inMaintenance(ctx, vm, where, &blind)
	if blind != nil && ctx.Err() == nil {
		was.Unseen = fmt.Sprintf("the token may not ask its guest agent (%v)", blind)
		return t.staysOn(ctx, vm)
	}
	if err != nil {
		return t.hint(err)
	}
	was.Addr = at
	return t.judge(vm, m.Machine)
}

// judge compares what the scratch VM runs with the build, and the disk that it was made with, as a roll
// does with a node.
func (t *trial) judge(vm cluster.VM, m cluster.Machine) error {
	b := t.Model.Wanted.Build
	problems := b.CheckBooted(m.RunningSystem)
	for _, e := range b.Extensions {
		if !slices.Contains(m.Extensions, cluster.ExtensionEntry{Name: e.Name, Version: e.Version}) {
			problems = append(problems, fault.Refusedf("what it booted has no extension %s %s", e.Name, e.Version))
		}
	}
	if t.Disk != "" {
		mem := parking.Memory{VM: vm, SystemKey: t.Model.System.Key, DiskSerial: planning.ScratchSerial(t.uuid)}
		problems = append(problems, mem.WrongBlank(m, false, true)...)
	}
	if len(problems) == 0 {
		return nil
	}
	return fault.WithHint(fault.Refusedf("%s on %s: %w", t.image(), t.Host, errors.Join(problems...)), "no node was touched")
}

func (t *trial) image() string {
	if t.Disk != "" {
		return "the disk image " + t.Disk
	}
	return "the boot ISO " + t.ISO
}

func (t *trial) inMaintenance(ctx context.Context, vm cluster.VM, where func(context.Context) ([]netip.Addr, error), blind *error) (found cluster.BlankMachine, at netip.Addr, err error) {
	err = t.wait(ctx, fmt.Sprintf("scratch VM %d in maintenance mode", vm.ID), func(ctx context.Context) (bool, string, error) {
		if _, err := t.on(ctx, vm.ID); err != nil {
			return false, "", err
		}
		addrs, err := where(ctx)
		if *blind != nil {
			err = wait.Stop(err)
		}
		if err != nil {
			return false, "", err
		}
		seen := "it runs, and has no address yet"
		for _, addr := range addrs {
			m, err := t.Maintenance.MaintenanceMachine(ctx, addr)
			switch {
			case err != nil:
				seen = err.Error()
			case m.UUID != t.uuid:
				return false, "", wait.Stop(fault.WithHint(fault.UUIDMismatch.Refusedf("%s answers with UUID %s, not with %s of scratch VM %d", addr, words.OrNone(m.UUID), t.uuid, vm.ID),
					"another machine has that address: see who has it; nothing was done to it"))
			case m.Stage == "maintenance" && m.Ready:
				found, at = m, addr
				return true, "", nil
			default:
				seen = "stage " + m.Stage
			}
		}
		return false, seen, nil
	})
	return found, at, err
}

// staysOn only proves that Proxmox can start such a VM and that its emulator does not end: Proxmox
// does not know what a guest does.
func (t *trial) staysOn(ctx context.Context, vm cluster.VM) error {
	since := time.Now()
	return t.hint(t.wait(ctx, fmt.Sprintf("scratch VM %d stays on", vm.ID), func(ctx context.Context) (bool, string, error) {
		qmp, err := t.on(ctx, vm.ID)
		return err == nil && qmp == "running" && time.Since(since) >= min(time.Minute, t.Timing.Boot/2), "it runs", err
	}))
}

// on returns the status of the scratch VM's emulator. If the VM is off, the error ends the wait.
func (t *trial) on(ctx context.Context, id cluster.VMID) (qmp string, err error) {
	vm, err := t.Proxmox.VM(ctx, id)
	switch {
	case errors.Is(err, cluster.ErrNotFound) || err == nil && vm.UUID() != t.uuid:
		return "", wait.Stop(fmt.Errorf("scratch VM %d was deleted by someone", id))
	case err != nil:
		return "", fmt.Errorf("look up VM %d: %w", id, err)
	case !vm.Running:
		return "", wait.Stop(fmt.Errorf("%s is off: its guest has switched it off, or someone has", vm))
	case vm.QMP != "running":
		return vm.QMP, fmt.Errorf("%s is on, but its emulator says %q", vm, vm.QMP)
	}
	return vm.QMP, nil
}

func (t *trial) hint(err error) error {
	return fault.WithHint(fault.Prefix(fmt.Sprintf("%s with %s on %s", t.image(), t.Firmware, t.Host), err),
		"no node was touched. A VM made by hand with these settings and that image shows on its console why it does not come up; a way to it is needed as well: DHCP for its network, or roll.rehearse.addresses. "+
			"Without --rehearse a roll would have found out with %s down", strings.Join(t.Nodes, ", "))
}

// proofs are, by host, the steps that prove with scratch VMs what the plan relies on once a node is out: that Proxmox
// creates such a VM for this token, and that its storages hand volumes over. path is that of the step that has them.
func (r *Rehearser) proofs(p planning.Plan, path string) map[string][]step.Step {
	steps, handed := map[string][]step.Step{}, map[string]*scratchHandOver{}
	creates := map[string]*dryCreate{}
	for _, n := range p.Work() {
		if vm := n.Makes(); vm != nil {
			d := &dryCreate{Rehearser: r, path: path + "/" + n.Host, host: n.Host, model: *vm}
			if same, has := creates[d.key()]; has {
				same.nodes = append(same.nodes, n)
			} else {
				d.nodes = []planning.NodePlan{n}
				creates[d.key()] = d
				steps[n.Host] = append(steps[n.Host], d.step())
			}
		}
		for _, disk := range n.HandsOver() {
			at := n.Host + "/" + disk.Storage()
			if same, has := handed[at]; has {
				same.nodes = append(same.nodes, n)
				continue
			}
			h := &scratchHandOver{Rehearser: r, path: path + "/" + n.Host, host: n.Host, pool: n.Found.VM.Pool, disk: disk, nodes: []planning.NodePlan{n}}
			handed[at] = h
			steps[n.Host] = append(steps[n.Host], h.step())
		}
	}
	return steps
}

// dryCreate creates a VM with the settings of a node's, under another number, without disks, and deletes it. Proxmox
// checks the settings and the token's privileges for a new VM only when it creates one; after the node's VM is deleted,
// a refusal would keep the node down. The privileges on the node's own number are read: see survey.Needs.
type dryCreate struct {
	*Rehearser
	path  string // of its branch
	host  string
	nodes []planning.NodePlan
	model cluster.VM // that is to be created for the first of the nodes
}

func (d *dryCreate) step() step.Step {
	id := "create-" + d.nodes[0].Node
	return step.Step{
		ID: id, Kind: "try-create", Title: "check that Proxmox creates a VM with the settings of " + d.nodes[0].Node,
		Skip: func(context.Context) (string, error) { return d.proved(d.key()) },
		Do:   func(ctx context.Context) error { return d.do(ctx, d.path+"/"+id) },
	}
}

func (d *dryCreate) do(ctx context.Context, path string) error {
	s := scratchVM{Rehearser: d.Rehearser, host: d.host, uuid: newUUID(), path: path}
	_, err := s.create(ctx, func(id cluster.VMID) (map[string]string, error) { return d.config(id, s.uuid), nil })
	if err = s.remove(ctx, err); err != nil {
		return unproved(ctx, fault.Refusedf("Proxmox is to create the VM of %s again on %s, and a scratch VM with its settings could not be made and deleted there: %w", namesOf(d.nodes), d.host, err), err, d.nodes, "reimage and in-place keep the VM")
	}
	return fault.Prefix("journal", d.Journal.Put(d.key(), namesOf(d.nodes)))
}

// config is what a new VM of the model's node is created with, apart from its disks and what must be unique.
func (d *dryCreate) config(id cluster.VMID, uuid string) map[string]string {
	config := exchange.Carried(d.model)
	disks, _ := d.model.Disks()
	for key := range config {
		if cluster.IsDiskKey(key) {
			delete(config, key)
		} else if cluster.NumberedBus(key) == "net" {
			config[key] = withoutMAC(config[key])
		}
	}
	maps.Copy(config, map[string]string{
		"name": planning.ScratchName(id), "onboot": "0", "protection": "1", "smbios1": "uuid=" + uuid,
		cluster.CDKey(d.model.Config, disks): "none,media=cdrom",
		"description":                        d.description("it proves that Proxmox creates such a VM", planning.ScratchMark(d.Run, d.Cluster, uuid)),
	})
	return config
}

// key is that of the proof in the journal: nodes on one host with the same settings share it.
func (d *dryCreate) key() string {
	config := d.config(0, "")
	maps.DeleteFunc(config, func(key, _ string) bool { return strings.HasPrefix(key, "ipconfig") || key == "description" })
	var text strings.Builder
	text.WriteString(d.host)
	for _, key := range slices.Sorted(maps.Keys(config)) {
		text.WriteString("\n" + key + "=" + config[key])
	}
	sum := sha256.Sum256([]byte(text.String()))
	return "dry-create/" + hex.EncodeToString(sum[:6])
}

// scratchHandOver hands a scratch volume from one scratch VM to another and back, as the node's disks will
// be: whether a storage can do that is tried, not looked up. It is done once for each host and storage.
type scratchHandOver struct {
	*Rehearser
	path       string // of its branch
	host, pool string
	disk       cluster.Disk // one of a node's, on that storage
	nodes      []planning.NodePlan
}

const scratchKey = "scsi0"

func (h *scratchHandOver) fact() cluster.HandsOver {
	return cluster.HandsOver{Host: h.host, Storage: h.disk.Storage()}
}

func (h *scratchHandOver) step() step.Step {
	storage := h.disk.Storage()
	id := "hand-over-" + strings.ToLower(storage)
	if id != "hand-over-"+storage { // Fast and fast are two storages
		id += "-" + hex.EncodeToString([]byte(storage))
	}
	return step.Step{
		ID: id, Kind: "try-hand-over", Title: fmt.Sprintf("check that storage %s hands a volume over", h.disk.Storage()),
		Skip: h.skip,
		Do:   func(ctx context.Context) error { return h.do(ctx, h.path+"/"+id) },
	}
}

func (h *scratchHandOver) skip(context.Context) (string, error) {
	if h.HandedOver != nil {
		known, err := h.HandedOver(h.fact())
		if err != nil || known {
			return "an earlier run saw it", err
		}
	}
	return h.proved(h.fact().Key())
}

func (h *scratchHandOver) do(ctx context.Context, path string) error {
	uuid := newUUID() // of both, so that Scratch.Strange knows the volume by its serial on either
	a, b := h.scratch(uuid, path), h.scratch(uuid, path)
	volume := cluster.Disk{
		Volid:   h.disk.Storage() + ":" + strconv.FormatFloat(1.0/256, 'f', -1, 64), // 4 MiB, one extent of LVM
		Options: cluster.WithFormat(cluster.Disk{Volid: h.disk.Volid, Options: []string{"serial=" + planning.ScratchSerial(uuid)}}),
	}
	_, err := a.create(ctx, h.config(uuid, map[string]string{scratchKey: volume.Value()}))
	if err == nil {
		_, err = b.create(ctx, h.config(uuid, nil))
	}
	if err == nil {
		err = h.move(ctx, a, b)
	}
	if err == nil {
		err = h.move(ctx, b, a)
	}
	if err = b.remove(ctx, a.remove(ctx, err)); err != nil {
		return unproved(ctx, fault.StorageUnusable.Refusedf("storage %s on %s is to hand disks over from one VM to another, and a scratch volume on it did not go there and back: %w", h.disk.Storage(), h.host, err), err,
			h.nodes, "put the nodes' disks on another storage, or use strategy in-place, which moves none")
	}
	return fault.Prefix("journal", h.Journal.Put(h.fact().Key(), h.fact()))
}

func (h *scratchHandOver) scratch(uuid, path string) *scratchVM {
	return &scratchVM{Rehearser: h.Rehearser, host: h.host, uuid: uuid, path: path}
}

// config is not protected: a volume can't leave a VM that is. It sets nothing that a token for reimage may
// not set, so Proxmox makes the SMBIOS UUID up.
func (h *scratchHandOver) config(uuid string, drives map[string]string) func(cluster.VMID) (map[string]string, error) {
	return func(id cluster.VMID) (map[string]string, error) {
		config := map[string]string{
			"name": planning.ScratchName(id), "memory": "16", "onboot": "0",
			"description": h.description("it proves that a storage hands volumes over", planning.ScratchMarkOf(h.Run, h.Cluster, uuid, id)),
		}
		if h.pool != "" {
			config["pool"] = h.pool
		}
		maps.Copy(config, drives)
		return config, nil
	}
}

// move hands the volume over as an exchange does, and looks at both VMs then.
func (h *scratchHandOver) move(ctx context.Context, from, to *scratchVM) error {
	vm, err := h.Proxmox.VM(ctx, from.vmid)
	if err != nil {
		return fmt.Errorf("look up VM %d: %w", from.vmid, err)
	}
	if err := from.awaitQuorum(ctx); err != nil {
		return err
	}
	if err := h.Proxmox.MoveDisk(ctx, vm, scratchKey, to.vmid, scratchKey); err != nil {
		return fmt.Errorf("hand %s of %s over to VM %d: %w", scratchKey, vm, to.vmid, err)
	}
	left, err := h.Proxmox.VM(ctx, from.vmid)
	if err != nil {
		return fmt.Errorf("look up VM %d: %w", from.vmid, err)
	}
	got, err := h.Proxmox.VM(ctx, to.vmid)
	if err != nil {
		return fmt.Errorf("look up VM %d: %w", to.vmid, err)
	}
	disk, err := cluster.ParseDisk(scratchKey, got.Config[scratchKey])
	switch {
	case left.Config[scratchKey] != "":
		return fmt.Errorf("%s still has %s, which Proxmox reported as moved to %s", left, left.Config[scratchKey], got)
	case err != nil:
		return fmt.Errorf("%s after its disk was moved there: %w", got, err)
	case disk.Owner != got.ID || disk.Storage() != h.disk.Storage():
		return fmt.Errorf("%s of %s is %s, which does not carry its number", scratchKey, got, disk.Volid)
	}
	return nil
}

// unproved is the refusal if Proxmox answered, and err itself if it did not, or was not asked to the end.
// instead are strategies that do without the proof, for nodes that have a choice.
func unproved(ctx context.Context, refused, err error, nodes []planning.NodePlan, instead string) error {
	if ctx.Err() != nil || errors.Is(err, cluster.ErrLostAnswer) || errors.Is(err, cluster.ErrNoAnswer) {
		refused = err
	}
	if i := slices.IndexFunc(nodes, func(n planning.NodePlan) bool { return n.Resume }); i >= 0 {
		return fault.WithHint(refused, "no VM was deleted: recast undo %s gives VM %d its disks back", nodes[i].Node, nodes[i].VMID)
	}
	hint := "no node was touched"
	if slices.Contains(cluster.Strategies, nodes[0].Strategy) {
		hint += "; " + instead
	}
	return fault.WithHint(refused, "%s", hint)
}

func namesOf(nodes []planning.NodePlan) string {
	names := cluster.Each(nodes, func(n planning.NodePlan) string { return n.Node })
	return strings.Join(names, ", ")
}

func (r *Rehearser) proved(key string) (string, error) {
	var was any
	found, err := r.Journal.Get(key, &was)
	if err != nil || !found {
		return "", fault.Prefix("journal", err)
	}
	return "this run has seen it", nil
}

func (r *Rehearser) description(why, mark string) string {
	return fmt.Sprintf("Scratch VM of recast: %s, and is deleted right after that. Nothing on it is needed.\n\n%s", why, mark)
}
