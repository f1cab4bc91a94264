package cluster

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/step"
	"github.com/recast-sh/recast/internal/wait"
)

// Rehearsal says how a roll tries its boot ISOs out before it takes a node out:
// on each host, for each kind of firmware, a scratch VM boots the ISO to
// maintenance mode and is deleted.
type Rehearsal struct {
	// Addresses are fixed ones that nobody has, each with its network, which
	// scratch VMs of platform nocloud are given; where none is of the node's
	// network, DHCP gives one and the guest agent tells it.
	Addresses []netip.Prefix
	Gateway   netip.Addr // of the network that it is in; invalid: none
}

// Rehearsed is what came of trying one boot ISO out.
type Rehearsed struct {
	Host     string     `json:"host"`
	Firmware string     `json:"firmware"` // in words: "OVMF, q35, CPU host"
	ISO      string     `json:"iso"`
	Nodes    []string   `json:"nodes"`            // that are to boot it like that
	Addr     netip.Addr `json:"address,omitzero"` // where it answered
	Unseen   string     `json:"unseen,omitempty"` // why nobody could look at what it booted; "": it was as wanted
}

func (r Rehearsed) String() string {
	if r.Unseen != "" {
		return fmt.Sprintf("a VM like those of the nodes starts with it; what it booted was not seen: %s", r.Unseen)
	}
	return fmt.Sprintf("it booted to maintenance mode at %s, and is what its name says", r.Addr)
}

// rehearsedISOs gathers what came of the trials of one roll.
type rehearsedISOs struct {
	mu  sync.Mutex
	all []Rehearsed
}

// Rehearsed are the boot ISOs that this roll has tried out.
func (r *Roller) Rehearsed() []Rehearsed {
	r.rehearsed.mu.Lock()
	defer r.rehearsed.mu.Unlock()
	return slices.Clone(r.rehearsed.all)
}

// Trial is one boot ISO that is to be tried out on one host with one kind of firmware.
type Trial struct {
	Host      string       `json:"host"`
	Firmware  string       `json:"firmware"` // in words, as in Rehearsed
	ISO       string       `json:"iso"`
	Schematic string       `json:"schematic"`
	Nodes     []string     `json:"nodes"`            // that are to boot it like that
	Addr      netip.Prefix `json:"address,omitzero"` // that the scratch VM is given; none: DHCP's
	Gateway   netip.Addr   `json:"gateway,omitzero"` // of that address; none: it has none

	id       string // of its step
	firmware firmware
	model    NodePlan // the first of the nodes
}

func (t Trial) String() string {
	at := "an address from DHCP"
	if t.Addr.IsValid() {
		at = t.Addr.String()
	}
	return fmt.Sprintf("a scratch VM on %s, at %s, boots %s (schematic %s) with %s, as %s will, and is deleted", t.Host, at, t.ISO, t.Schematic, t.Firmware, strings.Join(t.Nodes, ", "))
}

// firmware is what of a VM decides how it boots.
type firmware struct {
	bios, machine, cpu string
	efi                string // options of the EFI disk; "": it has none
	keys               bool   // Secure Boot keys come with it
}

func firmwareOf(vm VM) firmware {
	or := func(key, otherwise string) string {
		if v := vm.Config[key]; v != "" {
			return v
		}
		return otherwise
	}
	f := firmware{bios: or("bios", "seabios"), machine: or("machine", "i440fx"), cpu: or("cpu", "kvm64")} // Proxmox' defaults
	if d, err := ParseDisk("efidisk0", vm.Config["efidisk0"]); err == nil {
		f.efi, f.keys = strings.Join(withoutOption(d, "size").Options, ","), d.Flag("pre-enrolled-keys")
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
	return text
}

var noPath = regexp.MustCompile(`[^a-z0-9.-]+`)

// id is the firmware in a step's ID, with the schematic of the ISO.
func (f firmware) id(schematic string) string {
	id := f.bios
	if f.keys {
		id += "-secureboot"
	}
	return noPath.ReplaceAllString(strings.ToLower(id+"-"+schematic), "-")
}

// trials are those of a plan, by host, each with the nodes that it is for. What an
// earlier run left unfinished is not tried out: those nodes are out already.
func (p Plan) trials(h Rehearsal) []Trial {
	byHost := map[string][]Trial{}
	for _, n := range p.Work() {
		if n.Strategy != Recreate && n.Strategy != Reimage || n.Resume || n.found.VM == nil {
			continue
		}
		f, of := firmwareOf(*n.found.VM), byHost[n.Host]
		same := func(t Trial) bool { return t.firmware == f && t.ISO == n.wanted.Build.ISOName }
		if i := slices.IndexFunc(of, same); i >= 0 {
			of[i].Nodes = append(of[i].Nodes, n.Node)
			continue
		}
		t := Trial{
			Host: n.Host, Firmware: f.String(), ISO: n.wanted.Build.ISOName, Schematic: n.wanted.Schematic, Nodes: []string{n.Node},
			id: f.id(n.wanted.Schematic), firmware: f, model: n,
		}
		for i, id := 2, t.id; slices.ContainsFunc(of, func(o Trial) bool { return o.id == t.id }); i++ {
			t.id = fmt.Sprintf("%s-%d", id, i)
		}
		byHost[n.Host] = append(of, t)
	}
	var out []Trial
	for i, host := range slices.Sorted(maps.Keys(byHost)) {
		for _, t := range byHost[host] {
			if t.Addr = h.addressFor(t.model, i); t.Addr.Contains(h.Gateway) {
				t.Gateway = h.Gateway
			}
			out = append(out, t)
		}
	}
	return out
}

// addressFor picks a fixed address in the node's network, another one for each
// host as far as there are others.
func (h Rehearsal) addressFor(n NodePlan, host int) netip.Prefix {
	near := slices.DeleteFunc(slices.Clone(h.Addresses), func(a netip.Prefix) bool { return !a.Contains(n.Addr) })
	if n.wanted.Build.Platform != "nocloud" || len(near) == 0 {
		return netip.Prefix{}
	}
	return near[host%len(near)]
}

// rehearseSteps are what comes before any node is looked at: scratch VMs of killed
// runs go, as they were made or not at all, and the boot ISOs are tried out.
func (r *Roller) rehearseSteps(p Plan) []step.Step {
	var steps []step.Step
	if len(p.Scratch) > 0 {
		steps = append(steps, r.clearScratch(p.Scratch))
	}
	if len(p.Trials) == 0 {
		return steps
	}
	var branches []step.Step
	byHost := map[string][]Trial{}
	for _, t := range p.Trials {
		byHost[t.Host] = append(byHost[t.Host], t)
	}
	for _, host := range slices.Sorted(maps.Keys(byHost)) {
		branches = append(branches, r.rehearseHost(host, byHost[host]))
	}
	return append(steps, step.Step{
		ID: "rehearse", Code: fault.RehearsalFailed, Title: "try the boot ISOs out on scratch VMs", Limit: len(branches),
		Steps: func(context.Context) ([]step.Step, error) { return branches, nil },
	})
}

// clearScratch deletes what killed runs have left.
func (r *Roller) clearScratch(left []LeftScratch) step.Step {
	pruner := r.scratchPruner()
	for _, l := range left {
		pruner.VMs = append(pruner.VMs, ScratchVerdict{LeftScratch: l})
	}
	return step.Step{
		ID: "clear-scratch", Title: "delete scratch VMs that a run has left", Risk: step.Destructive,
		Steps: func(context.Context) ([]step.Step, error) { return pruner.Steps(), nil },
	}
}

func (r *Roller) rehearseHost(host string, trials []Trial) step.Step {
	var steps []step.Step
	for _, t := range trials {
		run := &rehearsal{Trial: t, nodeRoll: &nodeRoll{Roller: r, plan: t.model, want: t.model.wanted, path: "roll/rehearse/" + host}}
		s := step.Step{
			ID: t.id, Kind: "try-boot", Title: fmt.Sprintf("boot %s with %s, as %s will", t.ISO, t.Firmware, strings.Join(t.Nodes, ", ")),
			Skip: run.done, Do: run.do, Yields: true,
		}
		if t.Addr.IsValid() {
			s.Uses = []string{"rehearse/" + t.Addr.Addr().String()}
		}
		steps = append(steps, s)
	}
	return step.Step{ID: host, Title: "on " + host, Steps: func(context.Context) ([]step.Step, error) { return steps, nil }}
}

// rehearsal is one trial in progress.
type rehearsal struct {
	Trial
	*nodeRoll // of the node that it is modelled on, which is only read

	vmid VMID // that was asked for; 0: none
	uuid string
}

// done asks the journal: of a scratch VM that is deleted, the world tells nothing.
func (t *rehearsal) done(context.Context) (string, error) {
	var was Rehearsed
	found, err := t.Journal.Get(t.key(), &was)
	if err != nil {
		return "", fmt.Errorf("journal: %w", err)
	}
	if !found || was.ISO != t.ISO || was.Firmware != t.Firmware {
		return "", nil
	}
	return was.String(), nil
}

func (t *rehearsal) key() string {
	sum := sha256.Sum256([]byte(t.Host + "/" + t.id))
	return "rehearsed/" + hex.EncodeToString(sum[:6])
}

// scratchTimeout bounds each part of what an interruption does not cut off: the wait
// for what Proxmox does with a scratch VM, and the VM's end.
const scratchTimeout = 2 * time.Minute

func (t *rehearsal) do(ctx context.Context) error {
	was, err := t.boot(ctx)
	if t.vmid != 0 {
		after := context.WithoutCancel(ctx)
		if errors.Is(err, ErrLostAnswer) || ctx.Err() != nil { // Proxmox may be about to make it, or to start it
			err = errors.Join(err, t.settle(after))
		}
		after, cancel := context.WithTimeout(after, scratchTimeout)
		defer cancel()
		err = errors.Join(err, t.scratchPruner().delete(after, t.vmid, t.uuid))
	}
	if err != nil {
		return err
	}
	t.rehearsed.mu.Lock()
	t.rehearsed.all = append(t.rehearsed.all, was)
	t.rehearsed.mu.Unlock()
	return fault.Prefix("journal", t.Journal.Put(t.key(), was))
}

// settle waits for the tasks about the scratch VM, and for no others of ours: those
// may take longer than anybody waits after Ctrl-C.
func (t *rehearsal) settle(ctx context.Context) error {
	w := wait.For{
		Name: fmt.Sprintf("tasks of scratch VM %d to end", t.vmid), Every: t.Timing.Poll, Timeout: scratchTimeout,
		Seen: func(seen string) { t.say(t.id, seen) },
	}
	return awaitTasks(ctx, w, func(ctx context.Context) ([]string, error) {
		return t.Proxmox.OwnTasksOf(ctx, t.Host, t.vmid)
	})
}

func (t *rehearsal) boot(ctx context.Context) (Rehearsed, error) {
	was := Rehearsed{Host: t.Host, Firmware: t.Firmware, ISO: t.ISO, Nodes: t.Nodes}
	if err := errors.Join(t.requireFreeAddress(ctx), t.requireScratchRoom(ctx)); err != nil {
		return was, err
	}
	vm, err := t.create(ctx)
	if err != nil {
		return was, err
	}
	if err := t.Proxmox.Start(ctx, vm); err != nil {
		return was, fault.WithHint(fmt.Errorf("start %s: %w", vm, err), "%s would not start as a new VM either: no node was touched", strings.Join(t.Nodes, ", "))
	}
	return was, t.see(ctx, vm, &was)
}
