// Package etcd reads the state of the members of etcd from the control planes, and has the steps that begin and restore
// etcd. [Look] asks the control planes and makes a [View]; the View shows whether a member may be taken out. [Begin]
// makes a machine begin an etcd of its own. [Restore] has the steps that restore etcd on the only control plane of a
// cluster from a snapshot; [FindTarget] finds that machine, and refuses where there may be other control planes.
package etcd

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/internal/etcddb"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/savefile"
	"github.com/recast-sh/recast/internal/step"
	"github.com/recast-sh/recast/internal/wait"
	"github.com/recast-sh/recast/internal/words"
)

// Snapshot is a snapshot of etcd that was verified to be complete.
type Snapshot struct {
	SizeBytes int64    `json:"sizeBytes"` // of the file
	SHA256    string   `json:"sha256"`    // of the database, hexadecimal
	Revision  uint64   `json:"revision"`  // of its last change; 0: it was never written to
	Members   []string `json:"members"`   // of etcd when it was taken, by name

	Peers map[string][]string `json:"-"` // URLs at which the others reached each
}

// SaveSnapshot streams a snapshot of etcd into a file, which gets its name only when verified and on disk.
func SaveSnapshot(ctx context.Context, file string, stream func(io.Writer) error) (found Snapshot, err error) {
	if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
		return found, err
	}
	if err := removeParts(filepath.Dir(file)); err != nil {
		return found, err
	}
	f, err := os.CreateTemp(filepath.Dir(file), partial) // readable by the owner only
	if err != nil {
		return found, err
	}
	temp := f.Name()
	defer func() {
		if err != nil {
			err = errors.Join(err, os.Remove(temp))
		}
	}()
	if err := errors.Join(stream(f), f.Sync(), f.Close()); err != nil {
		return found, err
	}
	if found, err = ReadSnapshot(ctx, temp, false); err != nil {
		return found, err
	}
	if err := os.Rename(temp, file); err != nil {
		return found, err
	}
	return found, savefile.SyncDir(filepath.Dir(file))
}

const partial = ".etcd-*.part"

// removeParts: killed processes' parts have all secrets of Kubernetes. After an hour untouched, nobody owns them.
func removeParts(dir string) error {
	parts, err := filepath.Glob(filepath.Join(dir, partial))
	for _, part := range parts {
		if info, errInfo := os.Lstat(part); errInfo == nil && time.Since(info.ModTime()) > time.Hour {
			err = errors.Join(err, os.Remove(part))
		}
	}
	return err
}

// smallestDatabase is one page, in the smallest page size that a machine has.
const smallestDatabase = 4096

// ReadSnapshot checks a file as etcd's restore does: a database and its SHA-256, which one copied from a member lacks.
func ReadSnapshot(ctx context.Context, file string, copied bool) (found Snapshot, err error) {
	f, err := os.Open(file)
	if err != nil {
		return found, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return found, err
	}
	if !info.Mode().IsRegular() {
		return found, &fs.PathError{Op: "read", Path: file, Err: errors.New("is no file")}
	}
	body := info.Size()
	if !copied {
		body -= sha256.Size
	}
	if body < smallestDatabase || body%512 != 0 {
		if copied {
			return found, fmt.Errorf("%s has %d bytes: it is not an etcd database", file, info.Size())
		}
		return found, fmt.Errorf("snapshot has %d bytes: it was cut off, or carries no checksum", info.Size())
	}
	sum := sha256.New()
	if _, err := io.CopyN(sum, f, body); err != nil {
		return found, err
	}
	want, err := io.ReadAll(f) // the checksum, or nothing
	if err != nil {
		return found, err
	}
	if !copied && !bytes.Equal(sum.Sum(nil), want) {
		return found, errors.New("snapshot does not match its checksum: it was cut off, or is damaged")
	}
	db, err := etcddb.Read(ctx, file, body)
	if err != nil {
		return found, fmt.Errorf("snapshot is %w", err)
	}
	found = Snapshot{SizeBytes: info.Size(), SHA256: hex.EncodeToString(sum.Sum(nil)), Revision: db.Revision, Peers: map[string][]string{}}
	for _, m := range db.Members {
		found.Members = append(found.Members, m.Name)
		found.Peers[m.Name] = m.Peers
	}
	return found, nil
}

// BackUp saves a snapshot of the most up-to-date of the members at these addresses: the leader, else another voting
// member that follows a leader. Problems of other members are warnings. It refuses if members do not agree on the data.
func BackUp(ctx context.Context, etcd cluster.EtcdReader, ask []netip.Addr, file string, say func(string)) (Backup, error) {
	v, at, problems := atEndpoints(ctx, etcd, ask)
	if err := ctx.Err(); err != nil {
		return Backup{}, err
	}
	if len(v.Statuses) == 0 {
		return Backup{}, errors.Join(append(problems, errors.New("no endpoint of the talosconfig reports the state of etcd"))...)
	}
	fit, err := v.Fit()
	if err != nil {
		return Backup{}, errors.Join(append(problems, err)...)
	}
	b := Backup{File: file, Taken: time.Now().UTC().Truncate(time.Second), Warnings: v.Unhealthy("")}
	var failed []error
	for _, m := range fit {
		s := v.Statuses[m.ID]
		b.Member, b.Address = m.Label(), at[m.ID]
		say(fmt.Sprintf("reading the database of %s (%s, %d MiB)", b.Member, map[bool]string{true: "the leader", false: "a follower"}[s.Leader == s.MemberID], s.DBBytes>>20))
		b.Snapshot, err = SaveSnapshot(ctx, file, func(w io.Writer) error {
			return etcd.EtcdSnapshot(ctx, b.Address, m.ID, &counted{w: w, of: s.DBBytes, say: say})
		})
		if err == nil {
			return b, nil
		}
		if _, local := errors.AsType[*fs.PathError](err); local {
			return Backup{}, fault.WithHint(fmt.Errorf("save the snapshot: %w", err), "free space there, or name another place with --to")
		}
		err = fmt.Errorf("snapshot of etcd from %s: %w", b.Member, err)
		if failed = append(failed, err); ctx.Err() != nil {
			break
		}
		b.Warnings = append(b.Warnings, err.Error())
	}
	return Backup{}, errors.Join(append(failed, errors.New("no member of etcd gave a usable snapshot; none was saved"))...)
}

// Backup is a saved snapshot of etcd.
type Backup struct {
	File    string     `json:"file"`
	Taken   time.Time  `json:"taken"`
	Member  string     `json:"member"` // whose database it is
	Address netip.Addr `json:"address"`
	Snapshot
	Warnings []string `json:"warnings,omitempty"` // what is wrong with etcd, and members that gave no usable snapshot
}

// atEndpoints asks each address for the status of its member, and the first voting member that knows a leader for the
// list of members. A member that is at none of these addresses is asked at the address that it publishes.
func atEndpoints(ctx context.Context, view cluster.EtcdReader, ask []netip.Addr) (v View, at map[uint64]netip.Addr, problems []error) {
	v = View{Statuses: map[uint64]cluster.EtcdStatus{}, Errs: map[uint64]error{}}
	at = map[uint64]netip.Addr{}
	unread := map[netip.Addr]error{}
	look := func(addr netip.Addr) (cluster.EtcdStatus, error) {
		if err := unread[addr]; err != nil {
			return cluster.EtcdStatus{}, err
		}
		s, err := view.EtcdStatus(ctx, addr)
		if err == nil {
			v.Statuses[s.MemberID], at[s.MemberID] = s, addr
		} else {
			unread[addr], problems = err, append(problems, err)
		}
		return s, err
	}
	for _, addr := range ask {
		s, err := look(addr)
		if err == nil && len(v.Members) == 0 && s.Leader != 0 && !s.Learner {
			if v.Members, err = view.EtcdMembers(ctx, addr); err != nil {
				problems = append(problems, err)
			}
		}
	}
	for _, m := range v.Members {
		if _, known := v.Statuses[m.ID]; known {
			continue
		}
		addr, err := m.Address(nil)
		if err == nil {
			_, err = look(addr)
		}
		if err != nil {
			v.Errs[m.ID] = fmt.Errorf("does not answer: %w", err)
		}
	}
	return v, at, problems
}

type counted struct {
	w        io.Writer
	n, of    int64
	lastSaid int64
	say      func(string)
}

func (c *counted) Write(b []byte) (int, error) {
	n, err := c.w.Write(b)
	if c.n += int64(n); c.n-c.lastSaid >= saidEvery {
		c.lastSaid = c.n
		c.say(fmt.Sprintf("%d of about %d MiB", c.n>>20, c.of>>20))
	}
	return n, err
}

// saidEvery is the number of bytes of a snapshot between two progress reports.
const saidEvery = 64 << 20

// WipeByReset is the command with which a machine deletes its etcd data, and everything else in that volume. Without
// the flags Talos first drains the node and leaves etcd, which does not run, and then switches it off.
const WipeByReset = "talosctl reset --system-labels-to-wipe EPHEMERAL --reboot --graceful=false (ETCD where the machine has that volume)"

// FindTarget looks at the talosconfig's endpoints: without etcd Kubernetes is down. Others must be known workers.
func FindTarget(ctx context.Context, talos cluster.MachineReader, files cluster.FileReader, ask []netip.Addr, node string, nodes []string) (t Target, err error) {
	var problems []error
	for _, addr := range ask {
		m, err := cluster.ReadMachine(ctx, talos, addr)
		name := cmp.Or(m.Nodename, m.Hostname)
		switch {
		case err != nil:
			problems = append(problems, err)
		case name != node && m.ControlPlane:
			return t, notSingle(node, words.OrNone(name))
		case name != node:
			problems = append(problems, fmt.Errorf("%s is %s", addr, words.OrNone(name)))
		case !m.ControlPlane:
			return t, fault.Configf("%s is a worker: it has no etcd", node)
		case m.TypeInit:
			return t, fault.WithHint(fault.EtcdSnapshot.Refusedf("%s is of machine.type init: it takes no snapshot, but Talos begins a new, empty etcd there", node),
				"set machine.type: controlplane in its configuration: talosctl patch machineconfig -n %s --mode staged -p '{\"machine\":{\"type\":\"controlplane\"}}'; then run the same command again, which sees whether it has data of etcd", addr)
		case t.Node == "":
			t = Target{Node: node, Addr: addr, UUID: m.UUID}
		}
	}
	if t.Node == "" {
		return t, fault.WithHint(fmt.Errorf("%s answers at none of the talosconfig's endpoints: %w", node, errors.Join(problems...)),
			"it must be up, configured, and named by an endpoint: talosctl config endpoint")
	}
	if err := requireSingle(ctx, talos, node, nodes); err != nil {
		return t, err
	}
	t.Data, err = HasData(ctx, files, cluster.Endpoint{Node: t.Node, Addr: t.Addr}, t.UUID)
	return t, err
}

// Restore restores etcd of a single control plane from a snapshot.
type Restore struct {
	Begin
	Kube cluster.NodeReader
	Left func(text string) // see Kubelets

	waited bool // the node was seen healthy
}

func (r *Restore) Steps() step.Step {
	return step.Step{ID: "restore", Code: fault.EtcdSnapshot, Title: "restore etcd on " + r.Target.Node, Steps: func(context.Context) ([]step.Step, error) {
		return []step.Step{
			r.Step("recover-etcd"),
			{
				ID: "wait-healthy", Title: "wait until " + r.Target.Node + " is healthy",
				Skip: r.healthy, Do: r.awaitHealthy,
			},
			Kubelets{Talos: r.Talos, Kube: r.Kube, Say: func(text string) { r.Say("restore/restart-kubelets", text) }, Left: r.Left}.Step(),
		}, nil
	}}
}

func (r *Restore) awaitHealthy(ctx context.Context) error {
	err := r.wait(ctx, "restore/wait-healthy", r.Target.Node+" healthy", func(ctx context.Context) (bool, string, error) {
		what, err := r.lacks(ctx)
		return err == nil && what == "", what, err
	})
	r.waited = err == nil
	return err
}

// healthy is the goal of awaitHealthy, and has no error until that has seen it: the wait itself says what is missing.
func (r *Restore) healthy(ctx context.Context) (string, error) {
	what, err := r.lacks(ctx)
	switch {
	case err == nil && what == "":
		return r.Target.Node + " is Ready", nil
	case !r.waited:
		return "", nil
	}
	return "", err
}

func (r *Restore) lacks(ctx context.Context) (string, error) {
	m, err := cluster.ReadMachine(ctx, r.Talos, r.Target.Addr)
	switch {
	case err != nil:
		return "", err
	case m.UUID != r.Target.UUID:
		return fmt.Sprintf("%s answers with UUID %s", r.Target.Addr, m.UUID), nil
	case m.Stage != "running" || !m.Ready:
		return m.Standing(), nil
	}
	v, err := Look(ctx, r.Talos, []cluster.Endpoint{{Node: r.Target.Node, Addr: r.Target.Addr}})
	if err != nil {
		return "", err
	}
	if wrong := v.Unhealthy(""); len(wrong) > 0 {
		return "etcd: " + strings.Join(wrong, "; "), nil
	}
	return cluster.LacksNode(ctx, r.Kube, r.Target.Node, m.UUID, m.BootID)
}

// Target is the only control plane of a cluster, with no etcd or a new one.
type Target struct {
	Node string     `json:"node"`
	Addr netip.Addr `json:"address"`
	UUID string     `json:"uuid"`
	Data bool       `json:"-"` // the machine has data of etcd
}

const disasterRecovery = "https://docs.siderolabs.com/talos/latest/build-and-extend-talos/cluster-operations-and-maintenance/disaster-recovery"

func notSingle(node string, others ...string) error {
	return fault.WithHint(fault.EtcdSnapshot.Refusedf("%s is not the only control plane: Talos knows %s as well", node, strings.Join(others, ", ")),
		"as long as one of them has etcd's data, let %s join it; where none has: %s", node, disasterRecovery)
}

// requireSingle refuses if there may be other control planes, with etcds. Discovery soon forgets what is off.
func requireSingle(ctx context.Context, talos cluster.MemberReader, node string, nodes []string) error {
	members, err := talos.Members(ctx)
	if err != nil {
		return fault.EtcdSnapshot.Errorf("whether %s is the only control plane can't be determined: %w", node, err)
	}
	var others []string
	known := map[string]bool{}
	for _, m := range members {
		known[m.Nodename] = true
		if m.ControlPlane && m.Nodename != node && !slices.Contains(others, m.Nodename) {
			others = append(others, m.Nodename)
		}
	}
	if len(others) > 0 {
		return notSingle(node, others...)
	}
	if unknown := cluster.Where(nodes, func(n string) bool { return !known[n] }); len(unknown) > 0 {
		return fault.WithHint(fault.EtcdSnapshot.Refusedf("whether %s is the only control plane can't be determined: Talos' discovery does not know %s at present", node, strings.Join(unknown, ", ")),
			"start the machines that are off, or remove from nodes in recast.yaml those that are gone for good; where discovery is switched off, and %s has always been the only one: %s", node, disasterRecovery)
	}
	return nil
}

// Begin makes a machine begin an etcd: the first member of a new etcd, or the only member of a restored one. Begin
// can be interrupted anywhere: an incomplete snapshot does not match its checksum, and the next upload replaces it
// (Talos 1.14 does not even keep it); etcd is bootstrapped only where it has no data.
type Begin struct {
	Talos  cluster.Talos
	Target Target
	File   string // snapshot to begin with; "": etcd begins empty
	Copied bool   // File is a copy of a database, without a checksum
	Timing cluster.Timing
	Above  string // path of the step above
	Say    func(path, text string)
	// Bootstraps is called before Talos is asked to bootstrap: from then on etcd may have data.
	Bootstraps func() error // nil: nothing is called
	Failed     string       // what to do if etcd does not begin

	path string // of the step
	ran  bool   // etcd was seen running
}

func (b *Begin) Step(id string) step.Step {
	b.path = b.Above + "/" + id
	_, with, code := b.start()
	return step.Step{ID: id, Code: code, Title: "begin etcd on " + b.Target.Node + " with " + with, Risk: step.Destructive, Skip: b.begun, Do: b.begin}
}

// start is what etcd begins with, for Talos and in words, and the code of a failure.
func (b *Begin) start() (content cluster.EtcdContent, with string, code fault.Code) {
	switch {
	case b.File == "":
		return cluster.EtcdEmpty, "an empty etcd", fault.EtcdUnhealthy
	case b.Copied:
		return cluster.EtcdCopy, b.File, fault.EtcdSnapshot
	}
	return cluster.EtcdSnapshot, b.File, fault.EtcdSnapshot
}

// etcdRuns is the goal of begin: the member leads an etcd of one.
func (b *Begin) etcdRuns(ctx context.Context) (string, error) {
	s, err := b.Talos.EtcdStatus(ctx, b.Target.Addr)
	if err != nil || s.Leader == 0 || s.Leader != s.MemberID {
		return "", err
	}
	return fmt.Sprintf("etcd %s runs on %s as member %x", s.Version, b.Target.Node, s.MemberID), nil
}

// begun is etcdRuns, but ignores errors until etcd has been seen running.
func (b *Begin) begun(ctx context.Context) (string, error) {
	why, err := b.etcdRuns(ctx)
	if !b.ran {
		err = nil
	}
	return why, err
}

// insist repeats do until the machine is ready for it.
func (b *Begin) insist(ctx context.Context, name string, do func(context.Context) error) error {
	b.Say(b.path, name)
	return b.wait(ctx, b.path, name, func(ctx context.Context) (bool, string, error) {
		err := do(ctx)
		if err == nil || errors.Is(err, cluster.ErrNotYet) {
			return err == nil, "", err
		}
		return false, "", wait.Stop(err)
	})
}

func (b *Begin) begin(ctx context.Context) error {
	var lost error
	content, with, _ := b.start()
	if !b.Target.Data { // else an earlier run has bootstrapped etcd
		if b.File != "" {
			if err := b.insist(ctx, "upload the snapshot to "+b.Target.Node, b.upload); err != nil {
				return err
			}
		}
		if b.Bootstraps != nil {
			if err := b.Bootstraps(); err != nil {
				return err
			}
		}
		begin := "make " + b.Target.Node + " begin with " + with
		if err := b.insist(ctx, begin, func(ctx context.Context) error {
			err := b.Talos.EtcdBootstrap(ctx, b.Target.Addr, b.Target.UUID, content)
			if errors.Is(err, cluster.ErrLostAnswer) { // the request is never repeated: from here on we only watch
				lost = fault.Prefix(begin, err)
				b.Say(b.path, err.Error())
				return nil
			}
			return err
		}); err != nil {
			return err
		}
	}
	return cluster.Unanswered(lost, b.wait(ctx, b.path, "etcd on "+b.Target.Node, func(ctx context.Context) (bool, string, error) {
		why, silent := b.etcdRuns(ctx)
		if b.ran = why != ""; b.ran {
			return true, why, nil
		}
		state, last, err := b.Talos.EtcdService(ctx, b.Target.Addr)
		if err == nil && state == "Failed" {
			return false, "", wait.Stop(fault.WithHint(fmt.Errorf("etcd could not begin with %s: %s", with, last),
				"%s; talosctl -n %s list %s shows whether it left files there, which must be deleted first: %s, which also wipes whatever else that volume holds", b.Failed, b.Target.Addr, DataDir, WipeByReset))
		}
		if state == "Running" && err == nil {
			err = silent
		}
		return false, strings.TrimSuffix(state+": "+last, ": "), err
	}))
}

func (b *Begin) upload(ctx context.Context) error {
	f, err := os.Open(b.File)
	if err != nil {
		return err
	}
	defer f.Close()
	return b.Talos.EtcdRecover(ctx, b.Target.Addr, b.Target.UUID, f)
}

func (b *Begin) wait(ctx context.Context, path, name string, look wait.Look) error {
	w := wait.For{Name: name, Every: b.Timing.Poll, Timeout: b.Timing.Join, Seen: func(seen string) { b.Say(path, seen) }}
	err := wait.Until(ctx, w, look)
	if errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil {
		return fault.WithHint(err, "run the same command again: it continues where this one stopped")
	}
	return err
}

// Source is the content with which the etcd of a broken cluster begins again; the zero value: etcd begins empty.
type Source struct {
	File   string
	Copied bool                                  // see Begin
	Sum    func(context.Context) (string, error) // reads File again, and returns its SHA-256
	Left   func(text string)                     // see Kubelets
	Gone   []string                              // the control planes that are made again: their entries in discovery are old
}

// Require refuses a snapshot that is not the planned one.
func (s Source) Require(ctx context.Context, sum string) error {
	switch {
	case sum == "":
		return nil
	case s.File == "":
		return fault.EtcdSnapshot.Refusedf("etcd must begin with the snapshot with SHA-256 %s, which this command does not have: run the same recast rebuild again", sum)
	}
	now, err := s.Sum(ctx)
	if err == nil && now != sum {
		err = fault.EtcdSnapshot.Refusedf("its SHA-256 is %s now, not %s", now, sum)
	}
	return fault.Prefix("read "+s.File+" again", err)
}

// View is etcd as all of its members describe it.
type View struct {
	Members  []cluster.EtcdMember
	Statuses map[uint64]cluster.EtcdStatus
	Errs     map[uint64]error
}

// Fit returns the members whose snapshot is usable, the best first.
func (v View) Fit() (fit []cluster.EtcdMember, err error) {
	unknown := maps.Clone(v.Statuses)
	for _, m := range v.Members {
		delete(unknown, m.ID)
		s, ok := v.Statuses[m.ID]
		if ok && s.Corrupt {
			return nil, fault.WithHint(fault.EtcdSnapshot.Refusedf("etcd's members do not hold the same data, so no snapshot of it can be trusted: %v", s.Errors),
				"talosctl etcd alarm list; replace the member that is wrong; talosctl etcd snapshot takes one of a member that you trust")
		}
		if ok && s.Leader != 0 && !s.Learner && !m.Learner {
			fit = append(fit, m)
		}
	}
	for id := range unknown {
		if len(v.Members) > 0 {
			return nil, fault.WithHint(fault.EtcdSnapshot.Refusedf("an endpoint of the talosconfig runs etcd member %x, which the others (%s) do not know: there are two etcds, and which is the cluster's can't be determined", id, v.Names()),
				"talosctl etcd members, asked of each endpoint, shows which members know each other; talosctl etcd snapshot takes one of a member that you trust")
		}
	}
	if len(fit) == 0 {
		return nil, fault.WithHint(fault.EtcdSnapshot.Refusedf("no member of etcd that answers follows a leader, so none is known to be up to date"),
			"talosctl etcd status; bring etcd back first; talosctl etcd snapshot takes what a member has without that")
	}
	// The leader comes first, because it has everything that was committed.
	leads := func(m cluster.EtcdMember) bool { return v.Statuses[m.ID].Leader == m.ID }
	slices.SortStableFunc(fit, func(a, b cluster.EtcdMember) int { return cluster.TrueFirst(leads(a), leads(b)) })
	return fit, nil
}

// Has reports whether a control plane is a member, even one that was added but has not started.
func (v View) Has(e cluster.Endpoint) bool {
	return slices.ContainsFunc(v.Members, func(m cluster.EtcdMember) bool {
		addr, err := m.Address(nil)
		return m.Of(e.Node) || m.Name == "" && err == nil && addr == e.Addr
	})
}

// Member finds a node's one member; of two with its name, Talos would remove the wrong one when the node joins again.
func (v View) Member(node string) (m cluster.EtcdMember, found bool, err error) {
	for _, o := range v.Members {
		if !o.Of(node) {
			continue
		}
		if found {
			return m, true, fault.WithHint(fault.EtcdUnhealthy.Refusedf("etcd has two members named %s: %x and %x", o.Name, m.ID, o.ID),
				"give every machine a hostname of its own: Talos removes the member of its name when a machine joins again")
		}
		m, found = o, true
	}
	return m, found, nil
}

// Names lists the members except those of the nodes in without.
func (v View) Names(without ...string) string {
	of := cluster.Where(v.Members, func(m cluster.EtcdMember) bool { return !slices.ContainsFunc(without, m.Of) })
	out := cluster.Each(of, func(m cluster.EtcdMember) string { return m.Label() })
	return words.OrNone(strings.Join(out, ", "))
}

// SilentOr returns the refusal, as a SilentError, so that the caller asks again, if all is only silence.
func (v View) SilentOr(refusal error, wrong []string) error {
	silent := cluster.Where(slices.Collect(maps.Values(v.Errs)), cluster.IsUnanswered)
	if len(silent) < len(wrong) {
		return refusal
	}
	return &cluster.SilentError{Err: refusal}
}

// Unhealthy lists the problems of every member but that of the node except.
func (v View) Unhealthy(except string) []string {
	var out []string
	leaders := map[uint64][]string{} // members by the leader that they follow
	seen := map[string]bool{}
	for _, m := range v.Members {
		if m.Of(except) {
			continue
		}
		s, err := v.Statuses[m.ID], v.Errs[m.ID]
		switch {
		case err != nil:
			out = append(out, m.Label()+" "+err.Error())
			continue
		case m.Learner || s.Learner:
			out = append(out, m.Label()+cluster.IsLearner)
		case s.Leader == 0:
			out = append(out, m.Label()+" knows no leader")
		}
		for _, e := range s.Errors {
			if text := m.Label() + ": " + e; !seen[e] {
				seen[e] = true // every member reports all alarms
				out = append(out, text)
			}
		}
		if s.Leader != 0 {
			leaders[s.Leader] = append(leaders[s.Leader], m.Label())
		}
	}
	if len(leaders) > 1 {
		out = append(out, "its members do not agree who leads: "+camps(leaders))
	}
	return append(out, v.skew(except)...)
}

func (v View) nameOf(id uint64) string {
	if m, known := cluster.Find(v.Members, func(m cluster.EtcdMember) bool { return m.ID == id }); known {
		return m.Label()
	}
	return fmt.Sprintf("%x", id)
}

// skew reports more than one minor version between members; a roll, as etcd's upgrade, passes through one.
func (v View) skew(except string) []string {
	var oldest, newest cluster.EtcdStatus
	for _, m := range v.Members {
		s := v.Statuses[m.ID]
		if m.Of(except) || s.Version == "" {
			continue
		}
		if oldest.Version == "" || slices.Compare(versionOf(s), versionOf(oldest)) < 0 {
			oldest = s
		}
		if newest.Version == "" || slices.Compare(versionOf(newest), versionOf(s)) < 0 {
			newest = s
		}
	}
	from, to := versionOf(oldest), versionOf(newest)
	if from[0] == to[0] && to[1]-from[1] <= 1 {
		return nil
	}
	return []string{fmt.Sprintf("its members are more than one minor version apart: %s runs %s, %s runs %s",
		v.nameOf(oldest.MemberID), oldest.Version, v.nameOf(newest.MemberID), newest.Version)}
}

// Look asks the first control plane that answers for the members, then each but those in without for its status.
func Look(ctx context.Context, talos cluster.EtcdReader, ask []cluster.Endpoint, without ...string) (View, error) {
	v := View{Statuses: map[uint64]cluster.EtcdStatus{}, Errs: map[uint64]error{}}
	var errs []error
	for _, e := range ask {
		members, err := talos.EtcdMembers(ctx, e.Addr)
		if err == nil {
			v.Members = members
			break
		}
		errs = append(errs, fmt.Errorf("ask %s for the members of etcd: %w", e.Node, err))
	}
	if len(v.Members) == 0 {
		return v, errors.Join(append(errs, errors.New("no control plane says who the members of etcd are"))...)
	}
	for _, m := range v.Members {
		if slices.ContainsFunc(without, m.Of) {
			continue
		}
		addr, err := m.Address(ask)
		var s cluster.EtcdStatus
		if err == nil {
			s, err = talos.EtcdStatus(ctx, addr)
		}
		switch {
		case err != nil:
			v.Errs[m.ID] = fmt.Errorf("does not answer: %w", err)
		case s.MemberID != m.ID:
			v.Errs[m.ID] = fmt.Errorf("is member %x, but what runs on %s is member %x: another machine has its name", m.ID, addr, s.MemberID)
		default:
			v.Statuses[m.ID] = s
		}
	}
	return v, nil
}

// camps says which members follow which leader.
func camps(leaders map[uint64][]string) string {
	var out []string
	for leader, by := range leaders {
		out = append(out, fmt.Sprintf("%s say %x", strings.Join(by, " and "), leader))
	}
	slices.Sort(out)
	return strings.Join(out, ", ")
}

// versionOf returns the major and the minor number.
func versionOf(s cluster.EtcdStatus) []int {
	v := make([]int, 2)
	_, _ = fmt.Sscanf(s.Version, "%d.%d", &v[0], &v[1]) // an invalid version counts as 0.0
	return v
}

// AdviceForLearner says how a member that stays a learner becomes a voter. Talos promotes a member
// only in the start of etcd in which it added the member, and stops trying after ten minutes
// (learnerMemberID and promoteMember in internal/app/machined/pkg/system/services/etcd.go).
func AdviceForLearner(node string, addr netip.Addr, m *cluster.Machine) string {
	return fmt.Sprintf("Talos makes a member a voter within ten minutes of the start in which it joined: if %s has started again since, or that time is over, it stays a learner "+
		"until it joins again with empty data: %s", addr, EmptyData(node, addr, m))
}

// Leftover says what to do about a member of no known control plane. One that answers is of some machine.
func (v View) Leftover(m cluster.EtcdMember) string {
	who := fmt.Sprintf("talosctl get members shows which machine has the name, and %s are its addresses", words.OrNone(strings.Join(m.Peers, ", ")))
	if _, answers := v.Statuses[m.ID]; answers {
		return "its etcd answers: " + who
	}
	return fmt.Sprintf("%s; it does not answer now: where its machine is gone for good, talosctl etcd remove-member %x removes it", who, m.ID)
}

// EmptyData says how to wipe a control plane's unused etcd data, so that it joins again; m may be nil.
func EmptyData(node string, addr netip.Addr, m *cluster.Machine) string {
	command := func(label string) string {
		return fmt.Sprintf("talosctl reset -n %s --graceful=false --reboot --system-labels-to-wipe %s, which also wipes whatever else that volume holds", addr, label)
	}
	switch {
	case m == nil:
		return fmt.Sprintf("talosctl -n %s get volumestatus ETCD shows whether that is a partition of its own, and recast doctor then has the command that wipes it", addr)
	case m.TypeInit:
		return fmt.Sprintf("as a machine of type init it would begin a new, empty etcd then: set machine.type: controlplane in its configuration first, which recast roll applies with its file in talos.machineConfigs, "+
			"or talosctl -n %s edit machineconfig --mode staged and a reboot; recast doctor then has the command", addr)
	case m.EtcdVolume() == cluster.PartitionVolume:
		return command("ETCD")
	}
	return fmt.Sprintf("recast plan --explain %s lists what else only EPHEMERAL has; where that may go, too: %s", node, command("EPHEMERAL"))
}

// HasData reports whether the data directory of etcd on that machine holds anything.
func HasData(ctx context.Context, files cluster.FileReader, at cluster.Endpoint, uuid string) (found bool, err error) {
	err = files.Files(ctx, at.Addr, uuid, func(ctx context.Context, f cluster.MachineFiles) error {
		return f.List(ctx, DataDir, false, func(cluster.MachineFile) error { found = true; return nil })
	})
	if errors.Is(err, cluster.ErrNotFound) {
		err = nil
	}
	if err != nil {
		return false, fmt.Errorf("look for data of etcd on %s: %w", at.Node, err)
	}
	return found, nil
}

// DataDir is etcd's. Talos bootstraps only if it is empty (machined/internal/server/v1alpha1, Bootstrap).
const DataDir = "/var/lib/etcd"

// AfterRestore says what still has to be done by hand once etcd is restored. The restored revision is lower than
// before. A client that watches Kubernetes from a revision that etcd has not reached again gets no events until then
// (https://github.com/etcd-io/etcd/issues/16028). Talos restores without raising the revision (startInit in
// internal/app/machined/pkg/system/services/etcd.go).
const AfterRestore = "restart whatever watches Kubernetes and ran all the time: the network plugin (kubectl -n kube-system rollout restart daemonset, " +
	"each by its name), kube-proxy, CoreDNS, storage drivers, operators and controllers of your own, on each worker and outside of the cluster"

// Kubelets restarts the kubelets of the machines that ran while etcd was restored.
type Kubelets struct {
	Talos interface {
		cluster.MemberReader
		cluster.PartReader
		cluster.KubeletRestarter
	}
	Kube  cluster.NodeReader
	Fresh []string // nodes whose machines started only after that
	Say   func(text string)
	Left  func(text string) // gets what a person has to restart
}

func (k Kubelets) Step() step.Step {
	return step.Step{ID: "restart-kubelets", Title: "restart the kubelets that still watch the lost etcd", Risk: step.Disruptive, Do: k.restart}
}

// restart does not fail for a machine that does not answer: if that is off, its kubelet starts later.
func (k Kubelets) restart(ctx context.Context) error {
	at, err := k.machines(ctx)
	if err != nil {
		return fault.WithHint(fmt.Errorf("look for the machines whose kubelets still watch the lost etcd: %w", err),
			"etcd is restored; run the same command again, or restart them: talosctl -n ADDRESS service kubelet restart")
	}
	var again []string
	for _, m := range at {
		k.Say(m.Node)
		who, err := cluster.ReadIdentity(ctx, k.Talos, m.Addr)
		if err == nil {
			err = k.Talos.RestartKubelet(ctx, m.Addr, who.UUID)
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if err != nil {
			k.Left(fmt.Sprintf("talosctl -n %s service kubelet restart: %s did not do it (%s)", m.Addr, m.Node, strings.ReplaceAll(err.Error(), "\n", " ")))
			continue
		}
		again = append(again, m.Node)
	}
	return k.awaitReady(ctx, again)
}

// readyWithin is how long a Node may take to be Ready after its kubelet was restarted. At first the Node is not Ready.
const readyWithin = time.Minute

func (k Kubelets) awaitReady(ctx context.Context, again []string) error {
	w := wait.For{Name: "the nodes whose kubelets were restarted to be Ready", Every: 2 * time.Second, Timeout: readyWithin, Seen: k.Say}
	err := wait.Until(ctx, w, func(ctx context.Context) (bool, string, error) {
		nodes, err := k.Kube.Nodes(ctx)
		if err != nil {
			return false, err.Error(), nil // etcd has just begun again
		}
		missing := slices.DeleteFunc(slices.Clone(again), func(node string) bool {
			return slices.ContainsFunc(nodes, func(n cluster.KubeNode) bool { return n.Name == node && n.Ready })
		})
		return len(missing) == 0, "not Ready: " + strings.Join(missing, ", "), nil
	})
	if ctx.Err() == nil && err != nil {
		k.Left("see why nodes are not Ready (kubectl get nodes): " + strings.ReplaceAll(err.Error(), "\n", " "))
		return nil
	}
	return err
}

// machines are those of Talos' discovery and the restored Kubernetes, which may each lack some, without Fresh.
func (k Kubelets) machines(ctx context.Context) (at []cluster.Endpoint, err error) {
	members, err := k.Talos.Members(ctx)
	if err != nil {
		return nil, err
	}
	nodes, err := k.Kube.Nodes(ctx)
	if err != nil {
		return nil, err
	}
	add := func(node string, addrs []netip.Addr) {
		known := slices.ContainsFunc(at, func(m cluster.Endpoint) bool { return m.Node == node || slices.Contains(addrs, m.Addr) })
		if len(addrs) > 0 && !known && !slices.Contains(k.Fresh, node) {
			at = append(at, cluster.Endpoint{Node: node, Addr: addrs[0]})
		}
	}
	for _, m := range members {
		add(m.Nodename, m.Addresses)
	}
	for _, n := range nodes {
		add(n.Name, n.Addresses)
	}
	slices.SortFunc(at, func(a, b cluster.Endpoint) int { return strings.Compare(a.Node, b.Node) })
	return at, nil
}
