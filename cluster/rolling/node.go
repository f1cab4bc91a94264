// Package rolling has what all steps of a node share while the node is rolled. [Node] is their handle: the ports,
// what the plan says about the node, and what its record and the journal remember. A Node caches nothing, so a step
// may ask it at any time. [Roll] has what all nodes of a roll share, such as which of them are out. [Node.CheckGate]
// is the last check before the node is taken out; each Require… checks one condition. [UserGates] asks the gates of a
// recast.yaml: commands, and conditions of Kubernetes objects.
package rolling

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/etcd"
	"github.com/recast-sh/recast/cluster/exchange"
	"github.com/recast-sh/recast/cluster/parking"
	"github.com/recast-sh/recast/cluster/planning"
	"github.com/recast-sh/recast/cluster/shape"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/step"
	"github.com/recast-sh/recast/internal/wait"
	"github.com/recast-sh/recast/internal/words"
)

// Journal keeps what can't be read from the world once a VM is gone. Every write is durable when it returns.
type Journal interface {
	Put(key string, v any) error
	Get(key string, v any) (found bool, err error)
	PutSecret(key string, b []byte) error
	Secret(key string) (b []byte, found bool, err error)
	// Delete removes the value and the secret of a key, if there are any.
	Delete(key string) error
}

// Roll is what all nodes of one roll share.
type Roll struct {
	// Each of these four checks that the claim is still ours before it changes anything: see Held.Guard.
	Proxmox     cluster.Proxmox
	Talos       cluster.Talos
	Maintenance cluster.Maintenance
	Kube        cluster.Kube
	Journal     Journal

	Cluster      string
	Run          string // ID of the run
	Timing       cluster.Timing
	AcceptOutage bool // of etcd and the Kubernetes API, in a cluster of two control planes
	// Say receives what a running step waits for; never nil.
	Say func(path, text string)

	Out  outNodes // nodes that this roll has taken out and not finished
	Late exchange.Late
}

type outNodes struct{ names sync.Map }

func (o *outNodes) Add(name string) { o.names.Store(name, true) }

func (o *outNodes) Remove(name string) { o.names.Delete(name) }

func (o *outNodes) Has(name string) bool {
	_, out := o.names.Load(name)
	return out
}

// Node is one node in a roll: what the plan says about it, and what its record and the journal remember.
type Node struct {
	*Roll
	Plan planning.NodePlan
	Want cluster.Wanted
	Path string // of its branch in the tree
}

// Key returns the journal key of something about the node.
func (n *Node) Key(what string) string { return n.Plan.Node + "/" + what }

// Parking reads the node's parking VM again on each call; ErrNotFound while there is none.
func (n *Node) Parking(ctx context.Context) (parking.Parking, error) {
	id, err := n.ParkingID(ctx)
	if err != nil {
		return parking.Parking{}, err
	}
	vm, err := exchange.ConfigOf(ctx, n.Proxmox, id)
	if err != nil {
		return parking.Parking{}, fmt.Errorf("look up parking VM %d: %w", id, err)
	}
	rec, ok, err := parking.ReadRecord(vm)
	switch {
	case err != nil:
		return parking.Parking{}, err
	case rec.Node == n.Plan.Node && rec.Cluster == n.Cluster:
		return parking.Parking{VM: vm, Record: rec}, nil
	case n.Plan.Found.Parking == nil && (!ok && vm.Name != cluster.ParkingName(n.Plan.Node) || ok && rec.Node != n.Plan.Node):
		// The VMID was only reserved for the parking VM; another VM took it first.
		return parking.Parking{}, fmt.Errorf("parking VM of %s: %w", n.Plan.Node, cluster.ErrNotFound)
	}
	return parking.Parking{}, parking.DescriptionChanged(vm, n.Plan.Node)
}

// ParkingID returns the VMID of the parking VM, from the plan or the journal.
func (n *Node) ParkingID(ctx context.Context) (cluster.VMID, error) {
	if p := n.Plan.Found.Parking; p != nil {
		return p.VM.ID, nil
	}
	var id cluster.VMID
	found, err := n.Journal.Get(n.Key("parking"), &id)
	if err != nil {
		return 0, fmt.Errorf("journal: %w", err)
	}
	if !found {
		return 0, fmt.Errorf("parking VM of %s: %w", n.Plan.Node, cluster.ErrNotFound)
	}
	return id, nil
}

// Tell shows, under a step of the node, what it is waiting for.
func (n *Node) Tell(id, text string) { n.Say(n.Path+"/"+id, text) }

// IsOldBoot says whether m is still the boot from before the node was taken down.
func (n *Node) IsOldBoot(ctx context.Context, m cluster.Machine) bool {
	mem, err := n.Memory(ctx)
	return err == nil && m.BootID == mem.BootID
}

// Published finds the images of the wanted build for the node's host.
func (n *Node) Published() Published {
	return Published{Proxmox: n.Proxmox, Wanted: n.Want, Host: n.Plan.Host}
}

// KubeNode reads the node's Node; a missing Node is a refusal.
func (n *Node) KubeNode(ctx context.Context) (cluster.KubeNode, error) {
	k, err := n.Kube.Node(ctx, n.Plan.Node)
	switch {
	case errors.Is(err, cluster.ErrNotFound):
		return cluster.KubeNode{}, fault.Refusedf("Kubernetes no longer knows node %s", n.Plan.Node)
	case err != nil:
		return cluster.KubeNode{}, fmt.Errorf("ask Kubernetes for node %s: %w", n.Plan.Node, err)
	}
	return k, nil
}

// Memory reads what was remembered about the node: from the journal, else from the record.
func (n *Node) Memory(ctx context.Context) (parking.Memory, error) {
	var m parking.Memory
	found, err := n.Journal.Get(n.Key("memory"), &m)
	if err != nil || found {
		return m, fault.Prefix("journal", err)
	}
	park, err := n.Parking(ctx)
	if err != nil {
		return m, err
	}
	return park.Record.ReadMemory(park.VM)
}

// UpdateRecord changes the open record of this run.
func (n *Node) UpdateRecord(ctx context.Context, change func(*parking.Record)) error {
	park, err := n.Parking(ctx)
	if err != nil {
		return err
	}
	return exchange.ChangeRecord(ctx, n.Proxmox, park.VM, n.Run, n.Late.Forgetting(park.VM.ID, change))
}

// AskEtcd lists the endpoints to ask about etcd, the node itself last.
func (n *Node) AskEtcd() []cluster.Endpoint {
	return append(n.OtherControlPlanes(), cluster.Endpoint{Node: n.Plan.Node, Addr: n.Plan.Addr})
}

// OtherControlPlanes lists the control planes without the node itself.
func (n *Node) OtherControlPlanes() []cluster.Endpoint {
	return slices.DeleteFunc(slices.Clone(n.Plan.ControlPlanes), func(e cluster.Endpoint) bool { return e.Node == n.Plan.Node })
}

// AsReimage returns the node with a plan to reimage it to its previous build.
func (n *Node) AsReimage() *Node {
	f := *n
	f.Plan.Strategy, f.Plan.EtcdKept, f.Plan.Resume = cluster.Reimage, n.Plan.FallbackKept, true
	f.Plan.KubeSpan = n.Plan.FallbackKubeSpan
	f.Want.Build, f.Path = *n.Plan.Previous, n.Path+"/fallback"
	f.Plan.Wanted = f.Want
	return &f
}

// StaysIn says whether the node is only cleaned up, and no run, not even an earlier one, has taken it out.
func (n *Node) StaysIn() bool {
	cordoned := slices.ContainsFunc(n.Plan.Drift.Reasons, func(r cluster.Reason) bool { return r.Code == "cordoned" })
	return n.Plan.OnlyTidies() && !cordoned
}

// JustNow is the maximum age of a positive result that the next step may reuse.
const JustNow = time.Second

// Wait waits until look succeeds, and shows under the step's ID what look sees. An error about our own credentials
// ends the wait at once.
func (n *Node) Wait(ctx context.Context, id, name string, timeout time.Duration, look wait.Look) error {
	return n.Watch(ctx, id, wait.For{Name: name, Timeout: timeout}, look)
}

// Watch is Wait with control over when to look.
func (n *Node) Watch(ctx context.Context, id string, w wait.For, look wait.Look) error {
	w.Seen = func(seen string) { n.Tell(id, w.Name+": "+seen) }
	return n.Timing.Await(ctx, w, look)
}

// WatchMachine reports changes of the node's machine; see wait.Watch.
func (n *Node) WatchMachine(ctx context.Context, tell func(look bool)) error {
	return n.Talos.WatchMachine(ctx, n.Plan.Addr, tell)
}

// Arrived reads a machine that is running and ready. If the machine is not, Arrived reads little, and lacks says how
// far the machine is.
func (n *Node) Arrived(ctx context.Context) (m cluster.Machine, lacks string, err error) {
	if m, err = cluster.ReadArrived(ctx, n.Talos, n.Plan.Addr); err == nil {
		lacks = n.LacksMachine(m.MachineStanding)
	}
	return m, lacks, err
}

// LacksMachine says why the node's own machine is not running and ready.
func (n *Node) LacksMachine(m cluster.MachineStanding) string {
	switch {
	case m.UUID != n.Plan.UUID:
		return fmt.Sprintf("%s answers with UUID %s", n.Plan.Addr, m.UUID)
	case m.Stage != "running" || !m.Ready:
		return m.Standing()
	}
	return ""
}

// OfMachine returns a wait for something that the machine itself reports.
func (n *Node) OfMachine(name string, timeout time.Duration) wait.For {
	return wait.For{Name: name, Timeout: timeout, Watches: []wait.Watch{n.WatchMachine}}
}

const snapshotKey = "etcd-snapshot"

// SnapshotStep saves etcd to a directory before the first control plane is touched.
func (r *Roll) SnapshotStep(p planning.Plan, dir string) step.Step {
	all := Node{Roll: r, Path: "roll"} // stands for all nodes
	return all.Repeating("snapshot-etcd", step.Step{
		ID: "snapshot-etcd", Code: fault.EtcdSnapshot, Title: "save a snapshot of etcd to " + dir,
		Skip: func(ctx context.Context) (string, error) {
			var file string
			found, err := r.Journal.Get(snapshotKey, &file)
			if err != nil || !found {
				return "", err
			}
			if _, err := etcd.ReadSnapshot(ctx, file, false); err != nil {
				return "", nil //nolint:nilerr // gone or cut off: taken again
			}
			return "saved as " + file, nil
		},
		Do: func(ctx context.Context) error { return r.takeSnapshot(ctx, p, dir) },
	})
}

func (r *Roll) takeSnapshot(ctx context.Context, p planning.Plan, dir string) error {
	file := filepath.Join(dir, fmt.Sprintf("etcd-%s-%s.db", r.Cluster, r.Run))
	var errs []error
	for _, e := range p.ControlPlanes {
		if _, err := etcd.SaveSnapshot(ctx, file, func(w io.Writer) error { return r.Talos.EtcdSnapshot(ctx, e.Addr, 0, w) }); err != nil {
			errs = append(errs, fmt.Errorf("snapshot of etcd from %s: %w", e.Node, err))
			continue
		}
		return r.Journal.Put(snapshotKey, file)
	}
	none := fault.EtcdSnapshot.Refusedf("no control plane gave a usable snapshot of etcd")
	if !slices.ContainsFunc(errs, func(err error) bool { return !cluster.IsUnanswered(err) }) {
		none = &cluster.SilentError{Err: none}
	}
	return errors.Join(append(errs, none)...)
}

// NoteEntry records on the Node which boot entry the machine's EFI variables still name, if the system disk has
// another entry: the disk was made from a disk image, or is back after a replacement. The variables outlive the disk,
// and only an installer writes them. The machine has just booted by its firmware: an entry of that name on the disk
// would have been booted (config_select_default_entry in systemd's boot.c).
func NoteEntry(n *Node) step.Step {
	look := func(ctx context.Context) (was, is cluster.Booted, err error) {
		m, err := cluster.ReadBooted(ctx, n.Talos, n.Plan.Addr)
		if err != nil {
			return was, is, fmt.Errorf("read machine %s: %w", n.Plan.Addr, err)
		}
		k, err := n.KubeNode(ctx)
		if m.NextBoot != m.BootEntry && m.BootEntry != "" {
			is.Gone = m.NextBoot
		}
		return k.Booted, is, err
	}
	return step.Step{
		ID: "note-entry", Title: "record the boot entry that an earlier disk left",
		Skip: func(ctx context.Context) (string, error) {
			was, is, err := look(ctx)
			if err != nil || was != is {
				return "", err
			}
			return words.OrNone(is.Gone), nil
		},
		Do: func(ctx context.Context) error {
			_, is, err := look(ctx)
			if err != nil {
				return err
			}
			return n.Kube.SetBooted(ctx, n.Plan.Node, is)
		},
	}
}

// DeleteNode returns the step that deletes the node's Node, unless mayGo refuses. mayStay, if set, reports which Node
// to keep.
func DeleteNode(n *Node, title string, mayGo func(context.Context, cluster.KubeNode) error, mayStay func(cluster.KubeNode) bool) step.Step {
	look := func(ctx context.Context) (k cluster.KubeNode, done string, err error) {
		k, err = n.Kube.Node(ctx, n.Plan.Node)
		switch {
		case errors.Is(err, cluster.ErrNotFound):
			return k, "Kubernetes has none of that name", nil
		case err != nil:
			return k, "", fmt.Errorf("ask Kubernetes for node %s: %w", n.Plan.Node, err)
		case mayStay != nil && mayStay(k):
			return k, "it is that of the new machine", nil
		}
		return k, "", nil
	}
	return step.Step{
		ID: "delete-node", Title: title, Risk: step.Destructive,
		Skip: func(ctx context.Context) (string, error) { _, done, err := look(ctx); return done, err },
		Do: func(ctx context.Context) error {
			k, done, err := look(ctx)
			if err != nil || done != "" {
				return err
			}
			if err := mayGo(ctx, k); err != nil {
				return err
			}
			return fault.Prefix("delete Node "+k.Name, n.Kube.DeleteNode(ctx, k.Name, k.UID))
		},
	}
}

// Final marks an error that is not retried; Final(nil) is nil.
func Final(err error) error {
	if err == nil {
		return nil
	}
	return &cluster.FinalError{Err: err}
}

// Repeat calls the function Repeat for a step of the node; id is the step's path below the node.
func (n *Node) Repeat(ctx context.Context, id string, within time.Duration, do func(context.Context) error) error {
	return Repeat(ctx, n.Timing.Poll, within, func(text string) { n.Say(path.Join(n.Path, id), text) }, do)
}

// Repeat repeats do until its reads are answered, at most for within, and says what it waits for. Any other error
// ends the repetition, and so does the end of ctx.
func Repeat(ctx context.Context, every, within time.Duration, say func(string), do func(context.Context) error) (err error) {
	var since time.Time // the first unanswered attempt
	w := wait.For{Name: "an answer", Every: max(every, time.Second)}
	w.Seen = func(seen string) { say(fmt.Sprintf("asked again for up to %s: %s", within, seen)) }
	_ = wait.Until(ctx, w, func(ctx context.Context) (bool, string, error) { // err says how it ended
		err = do(ctx)
		switch {
		case !cluster.IsUnanswered(err), ctx.Err() != nil:
			return true, "", nil
		case since.IsZero():
			since = time.Now()
		}
		if time.Since(since) >= within {
			err = Final(fmt.Errorf("%w; asked again for %s", err, within))
			return true, "", nil
		}
		return false, err.Error(), nil
	})
	if ctx.Err() != nil && cluster.IsUnanswered(err) && !errors.Is(err, ctx.Err()) {
		err = fmt.Errorf("%w: %w", err, context.Cause(ctx))
	}
	return err
}

// RepeatFor returns for how long a step of the node is repeated; id is the step's path below the node.
func (n *Node) RepeatFor(id string) time.Duration {
	if !n.Plan.Resume && slices.Contains(servesDuring, id) {
		return RepeatBefore
	}
	return max(n.Timing.Join, RepeatBefore)
}

// Repeating makes a step of the node, and every step below it, repeat while its reads are unanswered. id is the
// step's path below the node.
func (n *Node) Repeating(id string, s step.Step) step.Step {
	within := n.RepeatFor(id)
	skip, do, steps := s.Skip, s.Do, s.Steps
	if skip != nil {
		s.Skip = func(ctx context.Context) (reason string, err error) {
			err = n.Repeat(ctx, id, within, func(ctx context.Context) error {
				reason, err = skip(ctx)
				return err
			})
			return reason, err
		}
	}
	if do != nil {
		s.Do = func(ctx context.Context) error {
			again := false
			return n.Repeat(ctx, id, within, func(ctx context.Context) error {
				if again && skip != nil {
					if reason, err := skip(ctx); err != nil || reason != "" {
						return err
					}
				}
				again = true
				return do(ctx)
			})
		}
	}
	if steps != nil {
		s.Steps = func(ctx context.Context) (list []step.Step, err error) {
			err = n.Repeat(ctx, id, within, func(ctx context.Context) error {
				list, err = steps(ctx)
				return err
			})
			return n.RepeatingAll(id, list), err
		}
	}
	return s
}

// RepeatingAll is Repeating for each of the steps below a path.
func (n *Node) RepeatingAll(below string, list []step.Step) []step.Step {
	return cluster.Each(list, func(s step.Step) step.Step { return n.Repeating(path.Join(below, s.ID), s) })
}

// RepeatBefore is how long a step is repeated while the node still serves. Once the node is out, the end of its roll
// would not bring it back: then a step is repeated for Timing.Join, if that is longer.
const RepeatBefore = 3 * time.Minute

// Repeatable marks the error of a change that is idempotent.
func Repeatable(err error) error {
	if !errors.Is(err, cluster.ErrLostAnswer) {
		return err
	}
	return &cluster.RepeatableError{Err: err}
}

// servesDuring lists the steps during which the node still serves, by their path below the node. During a gate the
// node serves only if its roll had not begun before.
var servesDuring = []string{"snapshot-etcd", "gate", "pull", "take-down/remember", "take-down/drain", "take-down/leave-etcd", "upgrade/remember", "upgrade/drain"}

// FreeSteps returns the steps that free the disks that the plan showed, once the record of the replacement is closed.
// path is the path of their parent step below the node's.
func (n *Node) FreeSteps(path string) []step.Step {
	var steps []step.Step
	for _, f := range n.Plan.Frees {
		ref := exchange.KeptRef{Cluster: n.Cluster, Node: n.Plan.Node, Parking: f.Parking, Key: f.Key, Run: f.Run, Volid: f.Volid}
		id := "free-" + f.Key
		steps = append(steps, step.Step{
			ID: id, Kind: "free-disk", Title: "free " + f.String(), Risk: step.Destructive,
			Skip: func(ctx context.Context) (string, error) {
				_, entry, found, err := ref.Find(ctx, n.Proxmox)
				switch {
				case err != nil:
					return "", err
				case !found:
					return "it is gone", nil
				case !entry.Going:
					return "it stays; recast prune shows it", nil
				}
				return "", nil
			},
			Do: func(ctx context.Context) error {
				return n.stay(ctx, ref, ref.Free(ctx, n.Proxmox, n.uses), path+"/"+id, "recast prune can free it")
			},
		})
	}
	return steps
}

func (n *Node) uses(ctx context.Context) ([]cluster.Use, error) {
	vms, err := n.Proxmox.VMs(ctx)
	return parking.UsesOf(vms), fault.Prefix("read Proxmox", err)
}

// stay records that a disk stays, if err says why it was not freed, and returns an error if the roll must not go on:
// the node is as it should be, and hint says what frees the disk.
func (n *Node) stay(ctx context.Context, ref exchange.KeptRef, err error, path, hint string) error {
	if err == nil || ctx.Err() != nil || fault.KindOf(err) == fault.Claimed {
		return err
	}
	if _, unproven := errors.AsType[*cluster.UnprovenError](err); unproven {
		return err
	}
	if errStay := ref.Stay(ctx, n.Proxmox); errStay != nil {
		return errors.Join(err, errStay)
	}
	n.Tell(path, fmt.Sprintf("not freed: %v; it stays, and %s", err, hint))
	return nil
}

// FreeRemoved frees the disks that a removal of the node has parked and recorded as going: the system disk of a node
// that was there only for a roll. If it is not known whether something uses the disk, the next roll tries again.
func (n *Node) FreeRemoved() step.Step {
	const id = "free-disk"
	return step.Step{
		ID: id, Title: "free its system disk", Risk: step.Destructive, Skip: n.RemovedFreed,
		Do: func(ctx context.Context) error {
			park, err := n.Parking(ctx)
			if err != nil {
				return err
			}
			for _, k := range going(park) {
				ref := exchange.KeptRef{Cluster: n.Cluster, Node: n.Plan.Node, Parking: park.VM.ID, Key: k.Key, Run: k.Run}
				if _, there := park.VM.Config[k.Key]; there {
					disk, err := park.KeptDisk(k)
					if err != nil {
						return fault.PruneRefused.Refusedf("%s of %s is not freed: %w", k.Key, park.VM, err)
					}
					ref.Volid = disk.Volid
				}
				err := ref.Free(ctx, n.Proxmox, n.uses)
				if err != nil && fault.KindOf(err) != fault.Refused { // perhaps in use: it is still to be freed
					return fault.WithHint(fmt.Errorf("free %s of %s: %w", k.Key, park.VM, err), "run the same command again: it frees the disk")
				}
				if err := n.stay(ctx, ref, err, id, fmt.Sprintf("recast remove %s --free %s frees it", n.Plan.Node, n.Plan.Node)); err != nil {
					return err
				}
			}
			return nil
		},
	}
}

// RemovedFreed is the goal of FreeRemoved.
func (n *Node) RemovedFreed(ctx context.Context) (string, error) {
	park, err := n.Parking(ctx)
	switch {
	case errors.Is(err, cluster.ErrNotFound):
		return "nothing of it is parked", nil
	case err != nil || park.Record.Open || len(going(park)) > 0:
		return "", err
	case len(park.Record.Kept) > 0:
		return fmt.Sprintf("its system disk stays on %s", park.VM), nil
	}
	return "its system disk is freed", nil
}

func going(park parking.Parking) []parking.KeptDisk {
	going := func(k parking.KeptDisk) bool { return k.Removed && k.Going && !park.Record.Open }
	return cluster.Where(park.Record.Kept, going)
}

// Published finds what recast publish has put on the storages of Proxmox for a node's wanted build, as one host sees it.
type Published struct {
	Proxmox cluster.StorageReader
	Wanted  cluster.Wanted
	Host    string
}

// ISO returns the volid of the boot ISO on the first of the node's storages for it that has it.
func (i Published) ISO(ctx context.Context) (volid string, err error) {
	return i.find(ctx, "boot ISO", "iso/", i.Wanted.Build.ISOName, i.Wanted.ISOStorages)
}

// Disk returns the volid of the disk image, as ISO does for the boot ISO.
func (i Published) Disk(ctx context.Context) (volid string, err error) {
	return i.find(ctx, "disk image", "import/", i.Wanted.Build.DiskName, i.Wanted.DiskStorages)
}

func (i Published) find(ctx context.Context, what, content, name string, storages []string) (string, error) {
	for _, storage := range storages {
		upload, known := i.Wanted.Build.Upload(name, storage, i.Host)
		if !known {
			continue // what lies there is not recast's
		}
		volid := storage + ":" + content + upload.Name
		changed, found, err := i.Proxmox.VolumeChanged(ctx, i.Host, volid)
		if err != nil {
			return "", fmt.Errorf("look for %s on %s: %w", volid, i.Host, err)
		}
		if found && upload.Of != "" && !changed.Equal(upload.Changed) {
			return "", fault.WithHint(fault.ISODiffers.Refusedf("%s %s was changed at %s: recast uploaded it at %s, and does not boot what someone else put there",
				what, volid, changed.Format(time.RFC3339), upload.Changed.Format(time.RFC3339)), "recast publish uploads it again, under another name. Find out who changed it")
		}
		if found {
			return volid, nil
		}
	}
	return "", fault.WithHint(fault.ISODiffers.Refusedf("%s %s is on none of %s as host %s sees them", what, name, strings.Join(storages, ", "), i.Host), "recast publish")
}

// PlannedExchange returns the exchange of the node's VM as a roll would plan it now; nil if the strategy
// has no exchange.
func PlannedExchange(n planning.NodePlan) (*exchange.Replace, error) {
	switch {
	case n.Resume && n.Found.Parking != nil && n.Found.Parking.Record.Open:
		park := *n.Found.Parking
		mem, err := park.Record.ReadMemory(park.VM)
		return exchange.Of(nil, mem, park.Record, park.VM.ID), err
	case n.Strategy.From() == cluster.Nowhere:
		mem := parking.Memory{VM: shape.New(n.Wanted, n.VMID, ""), SystemKey: n.Wanted.SystemDisk}
		return exchange.Of(nil, mem, parking.Record{Node: n.Node, Strategy: n.Strategy}, 0), nil
	case n.Found.VM == nil:
		return nil, nil
	}
	vm := *n.Found.VM
	vm.Config = maps.Clone(vm.Config)
	vm.DropCSI()
	mem, s := parking.Memory{VM: vm}, n.Strategy
	switch {
	case n.System != nil && s.Replaces():
		mem.SystemKey = n.System.Key
	case len(n.VM.At(shape.Off)) > 0: // after whatever else the node gets
		s = cluster.Reshape
	default:
		return nil, nil
	}
	if s.DeletesVM() {
		mem.Firewall = n.Found.Ties.Firewall.Sum()
	}
	rec, err := parking.Record{Node: n.Node, Strategy: s}.Opened(mem, n.Found.Parking)
	if err != nil {
		return nil, err
	}
	var parking cluster.VMID
	if n.Found.Parking != nil {
		parking = n.Found.Parking.VM.ID
	}
	return exchange.Of(nil, mem, rec, parking), nil
}
