package roll

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/exchange"
	"github.com/recast-sh/recast/cluster/planning"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/step"
)

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
		ID: id, Kind: "try-create", Title: "see that Proxmox creates a VM with the settings of " + d.nodes[0].Node,
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

// scratchGiB is the size of the volume: 4 MiB, one extent of LVM.
const scratchGiB = 1.0 / 256

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
		ID: id, Kind: "try-hand-over", Title: fmt.Sprintf("see that storage %s hands a volume over", h.disk.Storage()),
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
		Volid:   h.disk.Storage() + ":" + strconv.FormatFloat(scratchGiB, 'f', -1, 64),
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

// proved asks the journal: the scratch VMs are deleted, so the world can't tell.
func (r *Rehearser) proved(key string) (string, error) {
	var was any
	found, err := r.Journal.Get(key, &was)
	if err != nil || !found {
		return "", fault.Prefix("journal", err)
	}
	return "this run has seen it", nil
}

func (r *Rehearser) description(why, mark string) string {
	return fmt.Sprintf("Scratch VM of recast: %s, and is deleted right after that. Nothing on it is of any worth.\n\n%s", why, mark)
}
