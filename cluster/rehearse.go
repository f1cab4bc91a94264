package cluster

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"net/netip"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/step"
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

// trial is one boot ISO on one host with one kind of firmware.
type trial struct {
	id       string // of its step
	firmware firmware
	nodes    []string
	model    NodePlan     // the first of them
	addr     netip.Prefix // to give to the scratch VM; invalid: DHCP's
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

// trials are those of a plan, each with the nodes that it is for, by host. What an
// earlier run left unfinished is not tried out: those nodes are out already.
func (p Plan) trials(h Rehearsal) (hosts []string, trials map[string][]*trial) {
	trials = map[string][]*trial{}
	for _, n := range p.Work() {
		if n.Strategy != Recreate && n.Strategy != Reimage || n.Resume || n.found.VM == nil {
			continue
		}
		f := firmwareOf(*n.found.VM)
		same := func(t *trial) bool {
			return t.firmware == f && t.model.wanted.Build.ISOName == n.wanted.Build.ISOName
		}
		if i := slices.IndexFunc(trials[n.Host], same); i >= 0 {
			trials[n.Host][i].nodes = append(trials[n.Host][i].nodes, n.Node)
			continue
		}
		if !slices.Contains(hosts, n.Host) {
			hosts = append(hosts, n.Host)
		}
		t := &trial{id: f.id(n.wanted.Schematic), firmware: f, nodes: []string{n.Node}, model: n}
		for i, id := 2, t.id; slices.ContainsFunc(trials[n.Host], func(o *trial) bool { return o.id == t.id }); i++ {
			t.id = fmt.Sprintf("%s-%d", id, i)
		}
		trials[n.Host] = append(trials[n.Host], t)
	}
	slices.Sort(hosts)
	for i, host := range hosts {
		for _, t := range trials[host] {
			t.addr = h.addressFor(t.model, i)
		}
	}
	return hosts, trials
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
// runs go, and the boot ISOs are tried out.
func (r *Roller) rehearseSteps(p Plan) []step.Step {
	var steps []step.Step
	if len(p.scratch) > 0 {
		steps = append(steps, r.clearScratch(p.scratch))
	}
	if r.Rehearse == nil {
		return steps
	}
	hosts, trials := p.trials(*r.Rehearse)
	if len(hosts) == 0 {
		return steps
	}
	var branches []step.Step
	for _, host := range hosts {
		branches = append(branches, r.rehearseHost(host, trials[host]))
	}
	return append(steps, step.Step{
		ID: "rehearse", Title: "try the boot ISOs out on scratch VMs", Limit: len(hosts),
		Steps: func(context.Context) ([]step.Step, error) { return branches, nil },
	})
}

func (r *Roller) rehearseHost(host string, trials []*trial) step.Step {
	var steps []step.Step
	for _, t := range trials {
		run := &rehearsal{trial: t, nodeRoll: &nodeRoll{Roller: r, plan: t.model, want: t.model.wanted, path: "roll/rehearse/" + host}}
		s := step.Step{
			ID: t.id, Kind: "try-boot", Title: fmt.Sprintf("boot %s with %s, as %s will", run.want.Build.ISOName, t.firmware, strings.Join(t.nodes, ", ")),
			Skip: run.done, Do: run.do, Yields: true,
		}
		if t.addr.IsValid() {
			s.Uses = []string{"rehearse/" + t.addr.Addr().String()}
		}
		steps = append(steps, s)
	}
	return step.Step{ID: host, Title: "on " + host, Steps: func(context.Context) ([]step.Step, error) { return steps, nil }}
}

// rehearsal is one trial in progress.
type rehearsal struct {
	*trial
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
	if !found || was.ISO != t.want.Build.ISOName || was.Firmware != t.firmware.String() {
		return "", nil
	}
	return was.String(), nil
}

func (t *rehearsal) key() string {
	sum := sha256.Sum256([]byte(t.plan.Host + "/" + t.id))
	return "rehearsed/" + hex.EncodeToString(sum[:6])
}

// scratchTimeout bounds the deletion of a scratch VM, which an interruption does not cut off.
const scratchTimeout = 2 * time.Minute

func (t *rehearsal) do(ctx context.Context) error {
	was, err := t.boot(ctx)
	after, cancel := context.WithTimeout(context.WithoutCancel(ctx), scratchTimeout)
	defer cancel()
	if t.vmid != 0 {
		if errors.Is(err, ErrLostAnswer) || ctx.Err() != nil { // Proxmox may be about to make it, or to start it
			err = errors.Join(err, AwaitOwnTasks(after, t.Proxmox, t.Timing.Poll, func(seen string) { t.say(t.id, seen) }))
		}
		err = errors.Join(err, t.deleteScratch(after, t.vmid, t.uuid))
	}
	if err != nil {
		return err
	}
	t.rehearsed.mu.Lock()
	t.rehearsed.all = append(t.rehearsed.all, was)
	t.rehearsed.mu.Unlock()
	return prefix("journal", t.Journal.Put(t.key(), was))
}

func (t *rehearsal) boot(ctx context.Context) (Rehearsed, error) {
	was := Rehearsed{Host: t.plan.Host, Firmware: t.firmware.String(), ISO: t.want.Build.ISOName, Nodes: t.nodes}
	if err := errors.Join(t.requireFreeAddress(ctx), t.requireScratchRoom(ctx)); err != nil {
		return was, err
	}
	vm, err := t.create(ctx)
	if err != nil {
		return was, err
	}
	if err := t.Proxmox.Start(ctx, vm); err != nil {
		return was, fault.WithHint(fmt.Errorf("start %s: %w", vm, err), "%s would not start as a new VM either: no node was touched", strings.Join(t.nodes, ", "))
	}
	return was, t.see(ctx, vm, &was)
}
