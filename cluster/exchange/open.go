package exchange

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"time"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/parking"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/wait"
)

// Remember reads what Proxmox knows of a node's VM, and of its system disk, when its replacement opens with this
// record.
func Remember(ctx context.Context, px cluster.Proxmox, vm cluster.VM, system cluster.Disk, opening parking.Record) (parking.Memory, error) {
	vm.DropCSI()
	ha, err := px.HAResource(ctx, vm.ID)
	if err != nil {
		return parking.Memory{}, fmt.Errorf("read what Proxmox HA has of %s: %w", vm, err)
	}
	if vm.Pool, err = px.Pool(ctx, vm.ID); err != nil {
		return parking.Memory{}, err
	}
	fw, err := rememberFirewall(ctx, px, vm, opening.Strategy)
	return parking.Memory{
		Firewall: fw, VM: vm, SystemKey: system.Key, DiskSerial: DiskSerial(opening.Run, opening.Node), HA: ha,
		Old: parking.KeptDisk{Run: opening.Run, Slot: system.Key, Options: cluster.OptionString(system)},
	}, err
}

// RequirePossible finds, while the node still runs, what would stop the exchange later.
func (r *Replace) RequirePossible(ctx context.Context) error {
	switch {
	case r.Strategy.System() == cluster.SystemKept && r.Restore == nil:
		return r.nothingKept()
	case !r.Strategy.Installs():
		_, err := r.marked()
		return err
	case r.Strategy.VM() == cluster.VMAgain:
		if err := cluster.RequireRemakeable(r.VM, r.HostArch); err != nil {
			return err
		}
	}
	return r.requireMakeable(ctx)
}

// OpenParking writes the open record into the parking VM of an earlier replacement, or into a new one. It calls
// meant with the VMID before it creates a VM.
func OpenParking(ctx context.Context, px cluster.Proxmox, opening parking.Record, mem parking.Memory, earlier *parking.Parking, ids []cluster.VMID, numbers *parking.Numbers, meant func(cluster.VMID) error) (cluster.VMID, parking.Record, error) {
	rec, err := opening.Opened(mem, earlier)
	switch {
	case err != nil:
		return 0, parking.Record{}, err
	case earlier == nil:
		id, err := CreateParking(ctx, px, mem.VM, rec, ids, numbers, meant)
		return id, rec, err
	case earlier.VM.Host != mem.VM.Host:
		return 0, parking.Record{}, fault.WithHint(fault.ParkedHalf.Refusedf("%s is not on %s, where VM %d is: disks can be handed over on one host only", earlier.VM, mem.VM.Host, mem.VM.ID),
			"on %s: %s", earlier.VM.Host, cluster.MigrateCommand(earlier.VM, mem.VM.Host))
	case earlier.Record.Open && earlier.Record.Run != rec.Run:
		return 0, parking.Record{}, fault.ParkedHalf.Refusedf("%s has an open record of run %s: that replacement has to be ended first", earlier.VM, earlier.Record.Run)
	}
	return earlier.VM.ID, rec, WriteRecord(ctx, px, earlier.VM, rec)
}

// CreateParking takes the first free VMID; if another process takes it first, it tries the next. It uses an empty
// parking VM of the node, which comes from an earlier request of ours that finished late.
func CreateParking(ctx context.Context, px cluster.Proxmox, vm cluster.VM, rec parking.Record, ids []cluster.VMID, numbers *parking.Numbers, meant func(cluster.VMID) error) (id cluster.VMID, err error) {
	end, err := numbers.Turn(ctx)
	if err != nil {
		return 0, err
	}
	defer func() { end(err == nil) }()
	for _, id := range numbers.InOrder(rec.Node, ids) {
		if numbers.Others(rec.Node, id) {
			continue
		}
		there, err := px.VMConfig(ctx, id)
		if errors.Is(err, cluster.ErrNotFound) {
			numbers.Next(rec.Node, id)
			if err := meant(id); err != nil {
				return 0, err
			}
			err = MakeParking(ctx, px, vm, rec, id)
			if err == nil || !errors.Is(err, cluster.ErrExists) {
				return id, err
			}
			there, err = px.VMConfig(ctx, id)
		}
		if err == nil {
			there, err = formed(ctx, px, there)
		}
		if err != nil {
			return 0, fmt.Errorf("look up VM %d: %w", id, err)
		}
		late, is := LateParking(there, rec.Cluster)
		switch {
		case is && late.Node == rec.Node && late.VMID == rec.VMID && there.Host == vm.Host:
			return id, errors.Join(meant(id), WriteRecord(ctx, px, there, rec))
		case is:
			numbers.Met(late.Node, id)
		}
	}
	return 0, fault.WithHint(fault.ParkedHalf.Refusedf("no VMID is free for the parking VM of %s", rec.Node), "widen proxmox.vmids")
}

// formed waits until a VM that is being created has its configuration: as long as a task of ours creates it, and up
// to CreationTakes for another token's task. A VM whose creation was killed never gets its configuration.
func formed(ctx context.Context, px cluster.Proxmox, vm cluster.VM) (cluster.VM, error) {
	within := time.Now().Add(CreationTakes)
	err := wait.Until(ctx, wait.For{Name: "creation of " + vm.String(), Every: time.Second, Timeout: OwnTasksTimeout}, func(ctx context.Context) (bool, string, error) {
		if !cluster.Forming(vm) || time.Now().After(within) {
			return true, "", nil
		}
		running, err := px.OwnTasksOf(ctx, vm.Host, vm.ID)
		if err != nil {
			return false, "", err
		}
		if len(running) > 0 {
			within = time.Now().Add(CreationTakes)
		}
		now, err := px.VMConfig(ctx, vm.ID)
		if err == nil {
			vm = now
		}
		return false, "it is locked (create)", err
	})
	return vm, err
}

// DiskSerial names the blank system disk of one node in one run, within the 20
// characters that every disk bus of QEMU passes on.
func DiskSerial(run, node string) string {
	sum := sha256.Sum256([]byte(run + "/" + node))
	return "recast-" + hex.EncodeToString(sum[:])[:12]
}

// OwnTasksTimeout bounds the wait for tasks that Proxmox still runs for an earlier recast process.
// The longest, the copy of an upload, takes minutes.
const OwnTasksTimeout = 10 * time.Minute

// CreationTakes bounds how long Proxmox takes to create a VM without disks, unless a task of ours
// shows that it still does.
const CreationTakes = 30 * time.Second

// LateParking returns the record of a parking VM of the cluster to which no disk was ever handed over.
func LateParking(vm cluster.VM, clusterName string) (parking.Record, bool) {
	rec, found, err := parking.ReadRecord(vm)
	return rec, found && err == nil && rec.Cluster == clusterName && parking.Parking{VM: vm, Record: rec}.Empty()
}

// MakeParking creates the parking VM of a record under a VMID, protected and never started.
func MakeParking(ctx context.Context, px cluster.Proxmox, vm cluster.VM, rec parking.Record, id cluster.VMID) error {
	rec.Parking = id
	description, err := rec.Description()
	if err != nil {
		return err
	}
	config := map[string]string{"name": cluster.ParkingName(rec.Node), "memory": "16", "protection": "1", "onboot": "0", "description": description}
	if vm.Pool != "" {
		config["pool"] = vm.Pool
	}
	if err := px.CreateVM(ctx, vm.Host, id, config); err != nil {
		return fmt.Errorf("create parking VM %d on %s: %w", id, vm.Host, err)
	}
	return nil
}

// TouchedBy returns whether an earlier run of this cluster may have sent Proxmox a request for a VM. It accepts
// recast's own VMIDs, the VMIDs and names of the nodes, and every VM that a record of the cluster names. A run of
// another cluster may use the same token at the same time; its tasks do not count.
func TouchedBy(vms []cluster.VM, clusterName string, wanted []cluster.Wanted, own func(cluster.VMID) bool) (func(cluster.VMID) bool, error) {
	ids := map[cluster.VMID]bool{}
	for _, w := range wanted {
		ids[w.VMID], ids[w.Holder] = true, true
		for _, vm := range vms {
			if vm.Name == w.Name {
				ids[vm.ID] = true
			}
		}
	}
	parkings, err := parking.Readable(vms, clusterName)
	for _, p := range parkings {
		ids[p.VM.ID], ids[p.Record.VMID] = true, true
		for _, d := range p.Record.Disks {
			ids[d.Holder] = true
		}
	}
	return func(id cluster.VMID) bool { return ids[id] || own(id) }, err
}

// AwaitOwnTasks waits until Proxmox has finished the tasks of an earlier recast process, killed
// since, for the VMs that of accepts; see TouchedBy. Such a task could change a VM during this run.
func AwaitOwnTasks(ctx context.Context, px cluster.Tasks, of func(cluster.VMID) bool, poll time.Duration, say func(string)) error {
	w := wait.For{Name: "tasks of an earlier recast to end", Every: poll, Timeout: OwnTasksTimeout, Seen: say}
	return cluster.AwaitTasks(ctx, w, func(ctx context.Context) ([]string, error) { return px.OwnTasks(ctx, of) })
}
