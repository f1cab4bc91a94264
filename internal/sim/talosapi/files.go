package talosapi

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"encoding/base32"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"path"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/siderolabs/talos/pkg/machinery/api/common"
	machineapi "github.com/siderolabs/talos/pkg/machinery/api/machine"
	"github.com/siderolabs/talos/pkg/machinery/constants"
	"github.com/siderolabs/talos/pkg/machinery/extensions"
	"github.com/siderolabs/talos/pkg/machinery/resources/runtime"
	"go.yaml.in/yaml/v4"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/emptypb"
)

// The bytes of a file in one message (pkg/chunker/stream, NewChunker), and of a snapshot of etcd.
const (
	fileChunk     = 1024
	snapshotChunk = 32 << 10
)

// Read implements the API: it reads whole regular files and follows links. A missing file is NotFound; every other
// failure is a plain error, as in machined.
func (s *machineService) Read(req *machineapi.ReadRequest, srv grpc.ServerStreamingServer[common.Data]) error {
	fsys := s.boot.files()
	at, ok := fsys.follow(req.GetPath())
	if !ok {
		return status.Errorf(codes.NotFound, "stat %s: no such file or directory", req.GetPath())
	}
	f := fsys[at]
	if !f.mode.IsRegular() {
		return status.Error(codes.Unknown, "path must be a regular file")
	}
	return sendFile(srv, f.data, fileChunk)
}

// Copy implements the API: a gzipped tar of a directory's content, or of one file.
func (s *machineService) Copy(req *machineapi.CopyRequest, srv grpc.ServerStreamingServer[common.Data]) error {
	root := path.Clean(req.GetRootPath())
	if !path.IsAbs(root) {
		return status.Errorf(codes.Unknown, "path is not absolute %v", root)
	}
	fsys := s.boot.files()
	at, err := fsys.root(root)
	if err != nil {
		return err
	}
	var packed bytes.Buffer
	if err := fsys.pack(&packed, at); err != nil {
		return status.Error(codes.Unknown, err.Error())
	}
	return sendFile(srv, packed.Bytes(), fileChunk)
}

func sendFile(srv grpc.ServerStreamingServer[common.Data], content []byte, size int) error {
	for chunk := range slices.Chunk(content, size) {
		if err := srv.Send(&common.Data{Bytes: chunk}); err != nil {
			return err
		}
	}
	return nil
}

// List implements the API: the root first, then everything below it by name, each directory before its content.
func (s *machineService) List(req *machineapi.ListRequest, srv grpc.ServerStreamingServer[machineapi.FileInfo]) error {
	root := "/" + strings.TrimPrefix(strings.TrimSuffix(req.GetRoot(), "/"), "/")
	fsys := s.boot.files()
	at, err := fsys.root(root)
	if err != nil {
		return err
	}
	depth := 0
	if req.GetRecurse() {
		if depth = int(req.GetRecursionDepth()); depth == 0 {
			depth = -1
		}
	}
	return fsys.walk(at, depth, req.GetTypes(), func(name string, f nodeFile) error {
		return srv.Send(&machineapi.FileInfo{
			Name: name, RelativeName: relative(at, name, f), Size: f.size(), Mode: uint32(f.mode),
			Modified: imageTime, IsDir: f.mode.IsDir(), Link: f.link,
		})
	})
}

// imageTime is the modification time of every file: Talos' builds are reproducible and use the same time for all.
const imageTime = 1559424892

func relative(root, name string, f nodeFile) string {
	switch {
	case name != root:
		return strings.TrimPrefix(strings.TrimPrefix(name, root), "/")
	case f.mode.IsDir():
		return "."
	}
	return path.Base(name)
}

// walk visits at and everything below it, at most depth levels deep; a negative depth is no limit. As in machined's
// walker, a directory of an unwanted type is entered at any depth (pkg/archiver, Walker).
func (t nodeFiles) walk(at string, depth int, types []machineapi.ListRequest_Type, visit func(string, nodeFile) error) error {
	var into func(name string) error
	into = func(name string) error {
		f := t[name]
		wanted := len(types) == 0 || f.isOf(types)
		if wanted {
			if err := visit(name, f); err != nil {
				return err
			}
		}
		levels := strings.Count(name, "/") - strings.Count(at, "/")
		if !f.mode.IsDir() || wanted && name != at && depth >= 0 && levels >= depth {
			return nil
		}
		for _, child := range t.children(name) {
			if err := into(child); err != nil {
				return err
			}
		}
		return nil
	}
	return into(at)
}

func (f nodeFile) isOf(types []machineapi.ListRequest_Type) bool {
	for _, t := range types {
		switch {
		case t == machineapi.ListRequest_REGULAR && f.mode.IsRegular(),
			t == machineapi.ListRequest_DIRECTORY && f.mode.IsDir(),
			t == machineapi.ListRequest_SYMLINK && f.mode&fs.ModeSymlink != 0:
			return true
		}
	}
	return false
}

func (t nodeFiles) pack(w *bytes.Buffer, at string) error {
	z := gzip.NewWriter(w)
	archive := tar.NewWriter(z)
	err := t.walk(at, -1, nil, func(name string, f nodeFile) error {
		if name == at && f.mode.IsDir() {
			return nil
		}
		h := &tar.Header{Name: relative(at, name, f), Mode: int64(f.mode.Perm()), Typeflag: tar.TypeReg, Size: int64(len(f.data))}
		switch {
		case f.mode.IsDir():
			h.Typeflag, h.Name, h.Size = tar.TypeDir, h.Name+"/", 0
		case f.mode&fs.ModeSymlink != 0:
			h.Typeflag, h.Linkname, h.Size = tar.TypeSymlink, f.link, 0
		}
		if err := archive.WriteHeader(h); err != nil {
			return fmt.Errorf("pack %s: %w", name, err)
		}
		if _, err := archive.Write(f.data); err != nil {
			return fmt.Errorf("pack %s: %w", name, err)
		}
		return nil
	})
	if err != nil {
		return err
	}
	if err := archive.Close(); err != nil {
		return err
	}
	return z.Close()
}

type nodeFile struct {
	mode   fs.FileMode
	data   []byte // of a regular file
	link   string // target of a symbolic link
	kernel bool   // generated by the kernel when read: its size is 0
}

func (f nodeFile) size() int64 {
	switch {
	case f.kernel:
		return 0
	case f.mode&fs.ModeSymlink != 0:
		return int64(len(f.link))
	}
	return int64(len(f.data))
}

// nodeFiles is the file system of a running machine by absolute path, directories included.
type nodeFiles map[string]nodeFile

// schematicDir is where the factory's own extension has its single, empty file.
const schematicDir = "/usr/local/share/schematic/"

// files returns the running system's files as the API shows them. Callers must not change them.
func (b *boot) files() nodeFiles {
	t := maps.Clone(b.fixed())
	b.mu.Lock()
	if b.cfg != nil {
		t.addNames(machineID(b.nodeID))
	}
	b.mu.Unlock()
	if b.etcdService() != nil {
		t[constants.EtcdDataPath] = nodeFile{mode: fs.ModeDir | 0o700}
		t.addDirectories(constants.EtcdDataPath)
		if b.m.etcdData() != nil {
			t[constants.EtcdDataPath+"/member"] = nodeFile{mode: fs.ModeDir | 0o700}
		}
	}
	if !b.m.uefi() {
		return t
	}
	if name := b.m.defaultEntry(loader{}); name != "" {
		t[loaderDefaultVar] = nodeFile{mode: 0o644, data: efiString(name)}
		t.addDirectories(loaderDefaultVar)
	}
	return t
}

// fixedFiles returns some of the kernel's files, Talos' own few files in /usr/local, and the extensions' files.
func (b *boot) fixedFiles() nodeFiles {
	t := nodeFiles{}
	kernel := func(name string, content []byte) { t[name] = nodeFile{mode: 0o444, data: content, kernel: true} }
	kernel("/proc/sys/kernel/random/boot_id", []byte(b.id+"\n"))
	kernel("/proc/cmdline", []byte(b.med.image.Cmdline+"\n"))
	for _, dir := range []string{"/usr/lib/firmware", "/usr/local/lib/kubelet/credentialproviders", "/etc/ssl/certs"} {
		t[dir] = nodeFile{mode: fs.ModeDir | 0o755}
	}
	t["/usr/local/share/ca-certificates"] = nodeFile{mode: fs.ModeSymlink | 0o777, link: "/etc/ssl"}
	img := b.med.image
	if list := b.extensionsYAML(); list != nil {
		t[constants.ExtensionsRuntimeConfigFile] = nodeFile{mode: 0o644, data: list}
	}
	for _, e := range img.Extensions { // a later extension overrides an earlier one: mountRootFS of Talos' init
		for name, content := range e.Files {
			t[name] = nodeFile{mode: 0o644, data: content}
		}
		for name, target := range e.Links {
			t[name] = nodeFile{mode: fs.ModeSymlink | 0o777, link: target}
		}
	}
	for name, content := range img.Loose { // files that imager took out of the extensions; microcode is lost with the early archive
		if strings.HasPrefix(name, "/usr/lib/firmware/") {
			t[name] = nodeFile{mode: 0o644, data: content}
		}
	}
	if img.SchematicID != "" {
		t[schematicDir+img.SchematicID] = nodeFile{mode: 0o644}
	}
	t.addDirectories(slices.Collect(maps.Keys(t))...)
	return t
}

func (t nodeFiles) addDirectories(names ...string) {
	for _, name := range names {
		for dir := path.Dir(name); ; dir = path.Dir(dir) {
			t[dir] = nodeFile{mode: fs.ModeDir | 0o755}
			if dir == "/" {
				break
			}
		}
	}
}

// extensionsYAML returns imager's list of extensions; nil for an image without extensions.
func (b *boot) extensionsYAML() []byte {
	list := extensions.Config{Layers: layersOf(b.med.image)}
	if len(list.Layers) == 0 {
		return nil
	}
	text, err := yaml.Marshal(list)
	if err != nil {
		panic(err) // strings always marshal
	}
	return text
}

// follow resolves symbolic links anywhere in a path; it returns false for a missing file.
func (t nodeFiles) follow(name string) (string, bool) {
	const tooMany = 40
	for range tooMany {
		at, again := "/", false
		parts := strings.Split(strings.Trim(path.Clean("/"+name), "/"), "/")
		for i, part := range parts {
			at = path.Join(at, part)
			f, ok := t[at]
			if !ok {
				return "", false
			}
			if f.mode&fs.ModeSymlink == 0 {
				continue
			}
			target := f.link
			if !path.IsAbs(target) {
				target = path.Join(path.Dir(at), target)
			}
			name, again = path.Join(append([]string{target}, parts[i+1:]...)...), true
			break
		}
		if !again {
			return at, true
		}
	}
	return "", false
}

// root returns the start of a walk: links are followed, a missing file is a plain error.
func (t nodeFiles) root(name string) (string, error) {
	at, ok := t.follow(name)
	if !ok {
		return "", status.Errorf(codes.Unknown, "lstat %s: no such file or directory", name)
	}
	return at, nil
}

// children returns the names in a directory, in order.
func (t nodeFiles) children(dir string) []string {
	var out []string
	for name := range t {
		if name != dir && path.Dir(name) == dir {
			out = append(out, name)
		}
	}
	slices.Sort(out)
	return out
}

// machineID returns the ID that Talos makes of a node's identity: each new STATE has another machine ID
// (ConvertMachineID in adapters/cluster/identity.go, which takes the first bytes of an ID; the IDs of the lab may
// begin alike).
func machineID(nodeID string) string {
	sum := sha256.Sum256([]byte(nodeID))
	return hex.EncodeToString(sum[:16])
}

// addNames adds the files with the names that follow from a machine-id: node_identity.go, iqn.go and nqn.go in
// Talos' controllers.
func (t nodeFiles) addNames(id string) {
	hex := hex.EncodeToString([]byte(id[:16]))
	host := fmt.Sprintf("%s-%s-%s-%s-%s", hex[:8], hex[8:12], hex[12:16], hex[16:20], hex[20:])
	for name, content := range map[string]string{
		"/etc/machine-id": id, "/etc/iscsi/initiatorname.iscsi": "InitiatorName=iqn.2017-11.dev.talos:" + id + "\n",
		"/etc/nvme/hostid": host, "/etc/nvme/hostnqn": "nqn.2017-11.dev.talos:uuid:" + host,
	} {
		t[name] = nodeFile{mode: 0o600, data: []byte(content)}
		t.addDirectories(name)
	}
}

// journal is a list that grows until the next boot: machined's events, or the lines of a log.
type journal[T any] struct {
	mu      sync.Mutex
	entries []T
	changed chan struct{} // closed at the next entry
}

func (j *journal[T]) clear() { holding(&j.mu, func() { j.entries = nil }) }

func (j *journal[T]) add(entry T) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.entries = append(j.entries, entry)
	if j.changed != nil {
		close(j.changed)
	}
	j.changed = make(chan struct{})
}

// after returns the entries from the nth on, and a channel closed at the next entry.
func (j *journal[T]) after(n int) ([]T, <-chan struct{}) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.changed == nil {
		j.changed = make(chan struct{})
	}
	return j.entries[n:len(j.entries):len(j.entries)], j.changed
}

// follow sends the entries from the nth on; with more, it also sends new entries until ctx ends.
func (j *journal[T]) follow(ctx context.Context, n int, more bool, send func(T) error) error {
	for {
		entries, changed := j.after(n)
		n += len(entries)
		for _, e := range entries {
			if err := send(e); err != nil {
				return err
			}
		}
		if !more {
			return nil
		}
		if !awaitChange(ctx, changed, time.Time{}) {
			return ctx.Err()
		}
	}
}

type event struct {
	id, actor string
	at        time.Time
	payload   *anypb.Any
}

// tell publishes an event of that actor, if any (runtime.NewEvent).
func (b *boot) tell(actor string, m proto.Message) {
	b.events.add(event{id: b.m.fw.eventID(), actor: actor, at: time.Now(), payload: &anypb.Any{
		TypeUrl: "talos/runtime/" + string(m.ProtoReflect().Descriptor().FullName()), Value: marshal(m),
	}})
}

// eventID returns an xid: later events have greater IDs, across boots.
func (fw *Firmware) eventID() string {
	var id [12]byte
	binary.BigEndian.PutUint32(id[:], uint32(time.Now().Unix()))
	binary.BigEndian.PutUint64(id[4:], fw.lastEvent.Add(1))
	return strings.ToLower(base32.HexEncoding.WithPadding(base32.NoPadding).EncodeToString(id[:]))
}

// Events implements the API: an empty event first, then the requested past events, then
// new ones until the machine goes down.
func (s *machineService) Events(req *machineapi.EventsRequest, srv grpc.ServerStreamingServer[machineapi.Event]) error {
	b := s.boot
	if err := srv.Send(&machineapi.Event{Data: &anypb.Any{}, Id: b.m.fw.eventID(), ActorId: req.GetWithActorId()}); err != nil {
		return err
	}
	past, _ := b.events.after(0)
	n := len(past)
	first := func(wanted func(event) bool) int {
		if i := slices.IndexFunc(past, wanted); i >= 0 {
			return i
		}
		return len(past)
	}
	switch {
	case req.GetTailEvents() < 0:
		n = 0
	case req.GetTailEvents() > 0:
		n = max(0, n-int(req.GetTailEvents()))
	case req.GetTailId() != "":
		n = first(func(e event) bool { return e.id > req.GetTailId() })
	case req.GetTailSeconds() != 0:
		since := time.Now().Add(-time.Duration(req.GetTailSeconds()) * time.Second)
		n = first(func(e event) bool { return e.at.After(since) })
	}
	return b.events.follow(srv.Context(), n, true, func(e event) error {
		if req.GetWithActorId() != "" && e.actor != req.GetWithActorId() {
			return nil
		}
		return srv.Send(&machineapi.Event{Data: e.payload, Id: e.id, ActorId: e.actor})
	})
}

// tellService publishes the change of a service since its latest event, as machined's services do (UpdateState). The
// caller must hold b.showing.
func (b *boot) tellService(s service) {
	if b.shown[s.id] == s {
		return
	}
	if b.shown == nil {
		b.shown = map[string]service{}
	}
	b.shown[s.id] = s
	b.tell("", &machineapi.ServiceStateEvent{
		Service: s.id, Action: machineapi.ServiceStateEvent_Action(machineapi.ServiceStateEvent_Action_value[strings.ToUpper(s.state)]),
		Message: s.message, Health: s.info().GetHealth(),
	})
	b.m.say("service[%s](%s): %s", s.id, s.state, s.message)
}

// tellStatus publishes the machine's status if it has changed. The caller must hold b.showing.
func (b *boot) tellStatus(spec runtime.MachineStatusSpec) {
	e := &machineapi.MachineStatusEvent{
		Stage:  machineapi.MachineStatusEvent_MachineStage(spec.Stage),
		Status: &machineapi.MachineStatusEvent_MachineStatus{Ready: spec.Status.Ready},
	}
	for _, u := range spec.Status.UnmetConditions {
		e.Status.UnmetConditions = append(e.Status.UnmetConditions, &machineapi.MachineStatusEvent_MachineStatus_UnmetCondition{Name: u.Name, Reason: u.Reason})
	}
	if proto.Equal(e, b.told) {
		return
	}
	b.told = e
	b.tell("", e)
	if spec.Stage == runtime.MachineStageRunning && spec.Status.Ready {
		b.m.kernel.add("user", "warning", `[talos] machine is running and ready {"component": "controller-runtime", "controller": "runtime.MachineStatusController"}`)
	}
}

type textLog = journal[string]

// sendLines streams the lines from the nth on; with follow, it also streams new lines until the caller ends.
func sendLines(l *textLog, n int, follow bool, srv grpc.ServerStreamingServer[common.Data]) error {
	return l.follow(srv.Context(), n, follow, func(line string) error {
		return srv.Send(&common.Data{Bytes: []byte(line + "\n")})
	})
}

// kernelLog is the kernel log of one boot, as Dmesg sends it.
type kernelLog struct{ textLog }

func (k *kernelLog) restart(version, cmdline string) {
	k.clear()
	k.add("kern", "notice", "Linux version "+version)
	k.add("kern", "info", "Command line: "+cmdline)
}

// add appends a line in the format of machined's Dmesg.
func (k *kernelLog) add(facility, priority, text string) {
	k.textLog.add(fmt.Sprintf("%s: %7s: [%s]: %s", facility, priority, time.Now().Format(time.RFC3339Nano), text))
}

func (s *machineService) Dmesg(req *machineapi.DmesgRequest, srv grpc.ServerStreamingServer[common.Data]) error {
	n := 0
	if req.GetTail() {
		lines, _ := s.boot.m.kernel.after(0)
		n = len(lines)
	}
	return sendLines(&s.boot.m.kernel.textLog, n, req.GetFollow(), srv)
}

// say writes a line to machined's log and to the kernel's.
func (m *machine) say(format string, args ...any) {
	text := fmt.Sprintf(format, args...)
	m.kernel.add("user", "warning", "[talos] "+text)
	m.log.add(time.Now().Format("2006/01/02 15:04:05.000000") + " " + text)
}

// etcdSays writes a line to the log of etcd's server, as its logger (zap) encodes it.
func (m *machine) etcdSays(level, caller, msg string, problem string) {
	m.etcd.add(string(encoded(struct {
		Level  string `json:"level"`
		Ts     string `json:"ts"`
		Caller string `json:"caller"`
		Msg    string `json:"msg"`
		Error  string `json:"error,omitempty"`
	}{level, time.Now().UTC().Format("2006-01-02T15:04:05.000000Z0700"), caller, msg, problem})))
}

// logs returns the simulated logs by service. The logs of most services are always empty.
func (b *boot) logs() map[string]*textLog {
	all := map[string]*textLog{"kernel": &b.m.kernel.textLog, "machined": &b.m.log}
	for _, s := range b.services() {
		if s.state == stateRunning && all[s.id] == nil {
			all[s.id] = &textLog{}
		}
	}
	delete(all, "etcd")
	if lines, _ := b.m.etcd.after(0); len(lines) > 0 {
		all["etcd"] = &b.m.etcd
	}
	return all
}

func (s *machineService) Logs(req *machineapi.LogsRequest, srv grpc.ServerStreamingServer[common.Data]) error {
	var log *textLog
	if req.GetNamespace() == constants.SystemContainerdNamespace || req.GetId() == "kubelet" {
		var registered bool
		if log, registered = s.boot.logs()[req.GetId()]; !registered {
			return fmt.Errorf("log %q was not registered", req.GetId())
		}
	} else {
		all, err := s.boot.containers(srv.Context(), req.GetNamespace(), req.GetDriver())
		if err != nil {
			return err
		}
		if !slices.ContainsFunc(all, func(c *machineapi.ContainerInfo) bool { return c.GetId() == req.GetId() }) {
			return fmt.Errorf("container %q not found", req.GetId())
		}
		log = &textLog{}
	}
	n := 0
	if tail := int(req.GetTailLines()); tail >= 0 {
		lines, _ := log.after(0)
		n = max(0, len(lines)-tail)
	}
	return sendLines(log, n, req.GetFollow(), srv)
}

func (s *machineService) LogsContainers(context.Context, *emptypb.Empty) (*machineapi.LogsContainersResponse, error) {
	answer := &machineapi.LogsContainer{}
	for id := range s.boot.logs() {
		answer.Ids = append(answer.Ids, id)
	}
	return &machineapi.LogsContainersResponse{Messages: []*machineapi.LogsContainer{answer}}, nil
}

// sequence is machined's running sequence, as reported in its events and in the kernel's
// log (v1alpha1_controller.go). Only the boot's own goroutine uses it.
type sequence struct {
	b      *boot
	name   string
	actor  string // ID of the request, if any
	phases []phase
	at     int // index of the running phase; -1 before the first

	began, phaseBegan time.Time
}

// errCanceled ends a sequence that another sequence replaces.
var errCanceled = errors.New("context canceled")

// sequence begins a sequence and cancels the running sequence.
func (b *boot) sequence(actor, name string, phases []phase) {
	if b.seq != nil {
		b.seq.fail(errCanceled)
	}
	s := &sequence{b: b, name: name, actor: actor, phases: phases, at: -1, began: time.Now()}
	b.seq = s
	b.tell(actor, &machineapi.SequenceEvent{Sequence: name, Action: machineapi.SequenceEvent_START})
	b.m.say("%s sequence: %d phase(s)", name, len(phases))
}

// to advances to the named phase, which then runs. A phase that is over, or that the sequence lacks, changes nothing.
func (s *sequence) to(name string) {
	if s == nil { // machined has failed
		return
	}
	later := slices.IndexFunc(s.phases[s.at+1:], func(p phase) bool { return p.name == name })
	for wanted := s.at + 1 + later; s.at < wanted; {
		s.next()
	}
}

func (s *sequence) next() {
	if s.at >= 0 {
		s.tellPhase(machineapi.PhaseEvent_STOP, fmt.Sprintf("done, %s", time.Since(s.phaseBegan)))
		s.b.m.say("%s: done, %s", s, time.Since(s.phaseBegan))
	}
	s.at++
	for s.at < len(s.phases) && s.phases[s.at].skip {
		s.at++
	}
	if s.at == len(s.phases) {
		return
	}
	s.phaseBegan = time.Now()
	s.b.m.say("%s: %d tasks(s)", s, len(s.phases[s.at].tasks))
	s.tellPhase(machineapi.PhaseEvent_START, "starting")
}

// String returns the running phase in the log's form.
func (s *sequence) String() string {
	return fmt.Sprintf("phase %s (%d/%d)", s.phases[s.at].name, s.at+1, len(s.phases))
}

// tellPhase reports the start or end of the running phase and of its tasks. The tasks start after the phase and end
// before it; said is the log's word.
func (s *sequence) tellPhase(action machineapi.PhaseEvent_Action, said string) {
	p := s.phases[s.at]
	e := &machineapi.PhaseEvent{Phase: p.name, Action: action}
	if action == machineapi.PhaseEvent_START {
		s.b.tell(s.actor, e)
	}
	for i, task := range p.tasks {
		s.b.tell(s.actor, &machineapi.TaskEvent{Task: task, Action: machineapi.TaskEvent_Action(action)})
		s.b.m.say("task %s (%d/%d): %s", task, i+1, len(p.tasks), said)
	}
	if action == machineapi.PhaseEvent_STOP {
		s.b.tell(s.actor, e)
	}
}

func (s *sequence) end() {
	for s.at < len(s.phases) {
		s.next()
	}
	s.b.seq = nil
	s.b.tell(s.actor, &machineapi.SequenceEvent{Sequence: s.name, Action: machineapi.SequenceEvent_STOP})
	s.b.m.say("%s sequence: done: %s", s.name, time.Since(s.began))
}

// fail ends the sequence in the running phase and returns machined's error.
func (s *sequence) fail(err error) error {
	s.tellPhase(machineapi.PhaseEvent_STOP, "failed: "+err.Error())
	err = fmt.Errorf("error running phase %d in %s sequence: task 1/%d: failed, %w", s.at+1, s.name, len(s.phases[s.at].tasks), err)
	s.b.m.say("%s: failed", s)
	s.b.seq = nil
	s.b.tell(s.actor, &machineapi.SequenceEvent{Sequence: s.name, Action: machineapi.SequenceEvent_STOP})
	s.b.m.say("%s sequence: failed", s.name)
	code := common.Code_FATAL
	if errors.Is(err, errCanceled) {
		code = common.Code_CANCELED
	}
	s.b.tell(s.actor, &machineapi.SequenceEvent{Sequence: s.name, Action: machineapi.SequenceEvent_NOOP, Error: &common.Error{
		Code: code, Message: "sequence failed: " + err.Error(),
	}})
	return err
}

// phase is one step of a machined sequence, with its parallel tasks.
type phase struct {
	name  string
	tasks []string
	skip  bool // counted as a phase of the sequence but never run
}

// The sequences' phases with their tasks (v1alpha1_sequencer.go and v1alpha1_sequencer_tasks.go of 1.12 to 1.14): "+"
// is since 1.14, "-" until 1.13, "?" for machines that the lab does not have.
var (
	initializePhases = []string{
		"systemRequirements enforceKSPPRequirements",
		"-earlyServices startUdevd startMachined startApid startAuditd startSyslogd startContainerd",
		"+earlyServices startMachined waitForUdevd startApid startAuditd startSyslogd startContainerd",
		"-usb waitForUSB", "meta reloadMeta", "?cleanupBootloader cleanupBootloader", "dashboard startDashboard",
		"?wipeDisks resetSystemDiskPartitions", "?haltIfInstalled haltIfInstalled", "config loadConfig",
	}
	installPhases = []string{
		"env setUserEnvVars", "install install", "meta reloadMeta", "saveMeta flushMeta",
		"+denyNewServices denyNewServices", "+stopContainers teardownContainerLifecycle",
		"volumeFinalize teardownLifecycle", "stopEverything stopAllServices", "kexec kexecPrepare", "reboot reboot",
	}
	bootPhases = []string{
		"memorySizeCheck memorySizeCheck", "diskSizeCheck diskSizeCheck", "env setUserEnvVars waitForCARoots", "dbus startDBus",
		"ephemeral mountEphemeralPartition", "-udevSetup writeUdevRules", "+promotableVolumes mountPromotableSystemPartitions",
		"userDisks mountUserDisks", "userSetup writeUserFiles", "startEverything startAllServices",
	}
	preShutdownPhases = []string{"+preShutdown preShutdownServices", "dbus stopDBus"}
	stopAllPhases     = []string{
		"+denyNewServices denyNewServices", "+stopContainers teardownContainerLifecycle", "stopServices stopServicesForUpgrade",
		"umount unmountPodMounts", "unmountBind unmountSystemDiskBindMounts", "+unmountPromotable unmountPromotableSystemPartitions",
		"unmountSystem unmountEphemeralPartition", "volumeFinalize teardownLifecycle",
	}
	stopPhases   = []string{"stopEverything stopAllServices"}
	kexecPhases  = []string{"+stopEverything stopAllServices", "kexec kexecPrepare", "-stopEverything stopAllServices"}
	drainPhases  = []string{"drain cordonAndDrainNode"}
	podsPhases   = []string{"cleanup stopAllPods"}
	rebootPhases = []string{"reboot reboot"}
	poweroff     = []string{"shutdown shutdown"}
)

func (r release) phases(lists ...[]string) []phase {
	other := "+"
	if r.fourteen() {
		other = "-"
	}
	var all []phase
	for _, text := range slices.Concat(lists...) {
		if strings.HasPrefix(text, other) {
			continue
		}
		words := strings.Fields(strings.TrimLeft(text, "+-?"))
		tasks := slices.DeleteFunc(words[1:], func(task string) bool { return task == "startApid" && r.bareMaintenance })
		all = append(all, phase{name: words[0], tasks: tasks, skip: strings.HasPrefix(text, "?")})
	}
	return all
}

func (r release) rebooting() []phase {
	return r.phases(podsPhases, preShutdownPhases, stopAllPhases, kexecPhases, rebootPhases)
}

func (r release) shuttingDown(drain bool) []phase {
	lists := [][]string{{"storeShutdown storeShutdownEmergency"}}
	if drain {
		lists = append(lists, drainPhases)
	}
	return r.phases(append(lists, podsPhases, preShutdownPhases, stopAllPhases, stopPhases, poweroff)...)
}

// upgrading returns the phases of an upgrade that the machine runs itself.
func (r release) upgrading(then outcome) []phase {
	lists := [][]string{
		{"+denyNewServices denyNewServices"},
		drainPhases, podsPhases, preShutdownPhases,
		{
			"+stopContainers teardownContainerLifecycle", "stopServices stopServicesForUpgrade", "unmount unmountPodMounts",
			"unmountBind unmountSystemDiskBindMounts", "+unmountPromotable unmountPromotableSystemPartitions",
			"unmountSystem unmountEphemeralPartition", "volumeFinalize teardownLifecycle", "upgrade upgrade", "meta reloadMeta",
		},
	}
	if then == kexec {
		lists = append(lists, []string{"kexec kexecPrepare"})
	}
	return r.phases(append(lists, stopPhases, rebootPhases)...)
}

// resetting returns the phases of a reset; member: the machine is an etcd member.
func (r release) resetting(req *machineapi.ResetRequest, member bool) []phase {
	system, partitions := req.GetMode() != machineapi.ResetRequest_USER_DISKS, len(req.GetSystemPartitionsToWipe()) > 0
	lists := [][]string{podsPhases, preShutdownPhases}
	if req.GetGraceful() {
		lists = [][]string{drainPhases, {"cleanup removeAllPods"}, preShutdownPhases}
	}
	when := func(yes bool, phases []string) {
		if yes {
			lists = append(lists, phases)
		}
	}
	when(req.GetGraceful() && member, []string{"leave leaveEtcd"})
	lists = append(lists, []string{"preReset sendResetSignal"}, stopAllPhases)
	when(partitions, kexecPhases)
	when(!partitions, stopPhases)
	lists = append(lists, []string{"forceCleanup forceCleanup"})
	when(system && !partitions, []string{"reset resetSystemDisk"})
	when(system && partitions, []string{"resetSpec resetSystemDiskSpec"})
	when(len(req.GetUserDisksToWipe()) > 0, []string{"resetUserDisks resetUserDisks"})
	when(req.GetReboot(), rebootPhases)
	when(!req.GetReboot(), poweroff)
	return r.phases(lists...)
}
