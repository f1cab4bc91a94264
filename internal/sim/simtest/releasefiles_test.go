package simtest

import (
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/rogpeppe/go-internal/txtar"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/recast-sh/recast/internal/sim"
	"github.com/recast-sh/recast/internal/sim/kubeapi/store"
)

// traces are what a run of recast has written, by name: configurations of VMs ("vm/9004"), their descriptions
// ("vm/9004.description"), marks of Nodes ("node/wk1"), the claim in Kubernetes ("lease"), what it remembers of a setting of
// Longhorn ("hold"), and files of the working directory ("work/…"), without secrets, images and snapshots.
type traces map[string]string

// traces of all runs so far.
func (l *Lab) traces() traces {
	l.t.Helper()
	found := traces{}
	for _, vm := range l.World.VMs() {
		name := fmt.Sprintf("vm/%d", vm.ID)
		found[name+".description"] = vm.Config["description"]
		for _, key := range slices.Sorted(maps.Keys(vm.Config)) {
			if key != "description" && !l.madeUp(vm.ID, key) {
				found[name] += key + ": " + vm.Config[key] + "\n"
			}
		}
	}
	for _, n := range l.Nodes {
		if node, err := l.Kube.Node(l.t.Context(), n.Name); err == nil {
			found["node/"+n.Name] = marksOf(node)
		}
	}
	if lease := l.claimLease(); lease != nil {
		found["lease"] = lease.Annotations[claimAnnotation]
	}
	if setting := l.waitSetting(); setting != nil {
		found["hold"] = setting.GetAnnotations()["recast.dev/hold"]
	}
	for _, name := range []string{"recast.yaml", "recast.lock"} {
		found["work/"+name] = string(l.Read(name))
	}
	maps.Copy(found, l.stateFiles("runs"))
	maps.Copy(found, l.stateFiles("locks"))
	return found
}

// madeUp says whether Proxmox makes up the value of a key of a VM.
func (l *Lab) madeUp(id int, key string) bool {
	node := slices.ContainsFunc(l.Nodes, func(n sim.Node) bool { return n.VMID == id })
	return key == "vmgenid" || key == "meta" || key == "smbios1" && !node
}

// stateFiles are the files below .recast/dir, without secrets and the locks of processes.
func (l *Lab) stateFiles(dir string) traces {
	l.t.Helper()
	found := traces{}
	must(l.t, fs.WalkDir(os.DirFS(l.Dir), path.Join(".recast", dir), func(name string, e fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err == nil && e.Type().IsRegular() && !strings.HasSuffix(name, ".secret") && (dir == "locks" || !strings.HasSuffix(name, ".lock")) {
			found["work/"+name] = string(l.Read(name))
		}
		return err
	}))
	return found
}

const claimAnnotation = "recast.dev/claim"

func (l *Lab) claimLease() *coordinationv1.Lease {
	o, err := l.Kube.Store().Get(l.t.Context(), store.Leases(), "kube-system", "recast")
	if err != nil {
		return nil // there is none
	}
	return o.(*coordinationv1.Lease)
}

// waitSetting is the setting of Longhorn that a roll changes; nil if there is no Longhorn.
func (l *Lab) waitSetting() *unstructured.Unstructured {
	o, err := l.Kube.Store().Get(l.t.Context(), longhornSettings.GroupVersionResource, longhornSpace, waitSetting)
	if err != nil {
		return nil
	}
	return o.(*unstructured.Unstructured)
}

// marksOf is what recast has written on a Node, a line each.
func marksOf(node *corev1.Node) string {
	lines := []string{fmt.Sprintf("unschedulable: %t", node.Spec.Unschedulable)}
	for _, key := range slices.Sorted(maps.Keys(node.Annotations)) {
		if strings.HasPrefix(key, "recast.dev/") {
			lines = append(lines, key+": "+node.Annotations[key])
		}
	}
	return strings.Join(lines, "\n")
}

// namesBefore are names in a lab that are random, as they are before a run.
func (l *Lab) namesBefore() map[string]string {
	l.t.Helper()
	names := map[string]string{"directory": l.Dir}
	for _, n := range l.Nodes {
		node := l.kubeNode(n.Name)
		names["boot ID of "+n.Name], names["UID of "+n.Name] = node.Status.NodeInfo.BootID, string(node.UID)
		for _, v := range l.machine(n.Name).Volumes {
			names["partition "+v.Device+" of "+n.Name], names["filesystem "+v.Device+" of "+n.Name] = v.PartitionUUID, v.FilesystemUUID
		}
	}
	maps.DeleteFunc(names, func(_, name string) bool { return name == "" })
	for _, m := range l.EtcdMembers() {
		id, err := strconv.ParseUint(m.ID, 16, 64)
		must(l.t, err)
		names["etcd member "+m.Name] = strconv.FormatUint(id, 10)
	}
	return names
}

// namesAfter adds those that a run has made, or that are in files.
func (l *Lab) namesAfter(names map[string]string) {
	l.t.Helper()
	for name, pattern := range map[string]string{
		"recast.yaml": `(?m)^  (fingerprint): "(.*)"`,
		"recast.lock": `(?m)^ *(signer|checksum): (?:sha256-)?(.*)`,
	} {
		for _, m := range regexp.MustCompile(pattern).FindAllStringSubmatch(string(l.Read(name)), -1) {
			names[m[1]] = m[2]
		}
	}
	for name, text := range l.stateFiles("runs") {
		var remembered struct{ Old struct{ Config string } }
		if strings.HasSuffix(name, "~memory.json") && json.Unmarshal([]byte(text), &remembered) == nil && remembered.Old.Config != "" {
			names["hash of the configuration in "+path.Base(name)] = remembered.Old.Config
		}
	}
	for _, vm := range l.World.VMs() {
		if _, mac, ok := strings.Cut(vm.Config["net0"], "="); ok {
			names[fmt.Sprintf("MAC address of VM %d", vm.ID)], _, _ = strings.Cut(mac, ",")
		}
	}
	secrets, err := filepath.Glob(filepath.Join(l.Dir, ".recast", "runs", "*", "*.secret"))
	must(l.t, err)
	for _, file := range secrets {
		b := readFile(l.t, file)
		sum := sha256.Sum256(b)
		names["sum of "+filepath.Base(file)] = hex.EncodeToString(sum[:])
	}
}

// archive is a state of a release as a file.
func archive(names map[string]string, found traces) []byte {
	var a txtar.Archive
	dir := names["directory"]
	names["directory"] = "/home/me/lab"
	for _, name := range slices.Sorted(maps.Keys(names)) {
		a.Comment = fmt.Appendf(a.Comment, "%s: %s\n", name, names[name])
	}
	for _, name := range slices.Sorted(maps.Keys(found)) {
		a.Files = append(a.Files, txtar.File{Name: name, Data: []byte(strings.TrimSuffix(strings.ReplaceAll(found[name], dir, names["directory"]), "\n") + "\n")})
	}
	return txtar.Format(&a)
}

// released are the traces of a release, with the names of this lab instead of its own.
func (l *Lab) released(file string, names map[string]string) traces {
	l.t.Helper()
	a, err := txtar.ParseFile(file)
	must(l.t, err)
	var pairs []string
	for line := range strings.Lines(string(a.Comment)) {
		name, old, ok := strings.Cut(strings.TrimSpace(line), ": ")
		now, there := names[name]
		if !ok || !there {
			l.t.Fatalf("%s: %q is no name of this lab: %v", file, line, names)
		}
		pairs = append(pairs, old, now)
	}
	rename := strings.NewReplacer(pairs...)
	found := traces{}
	for _, f := range a.Files {
		text := regexp.MustCompile(`"memory":"([^"]+)"`).ReplaceAllStringFunc(string(f.Data), func(s string) string {
			return `"memory":"` + repacked(l, strings.TrimSuffix(strings.TrimPrefix(s, `"memory":"`), `"`), rename) + `"`
		})
		found[f.Name] = rename.Replace(text)
	}
	return found
}

// repacked is the packed memory in a record with other names.
func repacked(l *Lab, packed string, rename *strings.Replacer) string {
	l.t.Helper()
	b, err := base64.RawURLEncoding.DecodeString(packed)
	must(l.t, err)
	r, err := gzip.NewReader(bytes.NewReader(b))
	must(l.t, err)
	text, err := io.ReadAll(r)
	must(l.t, err)
	var out bytes.Buffer
	w := gzip.NewWriter(&out)
	_, err = rename.WriteString(w, string(text))
	must(l.t, err)
	must(l.t, w.Close())
	return base64.RawURLEncoding.EncodeToString(out.Bytes())
}

// replay replaces all that today's recast has written by what the release had written at the same moment. What only
// Proxmox and Kubernetes have must be there already: the disks must be where the release had moved them.
func (l *Lab) replay(release traces) {
	l.t.Helper()
	ours := l.traces()
	for name := range ours {
		_, there := release[name]
		switch file, isFile := strings.CutPrefix(name, "work/"); {
		case there:
		case isFile:
			l.Replace(file, "", "") // it did not write such a file
		default:
			l.t.Errorf("%s is here, and was not then", name)
		}
	}
	for name, text := range release {
		kind, what, _ := strings.Cut(name, "/")
		now, there := ours[name]
		var id int
		switch _, err := fmt.Sscanf(what, "%d.description", &id); {
		case kind == "work":
			l.Write(what, []byte(text))
		case !there:
			l.t.Errorf("%s was there then, and is not here", name)
		case kind == "vm" && err == nil:
			l.World.WriteByHand(id, "description", strings.TrimSuffix(text, "\n"))
		case kind == "node":
			l.mark(what, text)
		case kind == "hold":
			value, _ := l.waits()
			l.setWaits(value, strings.TrimSpace(text))
		case kind == "lease":
			lease := l.claimLease()
			lease.Annotations[claimAnnotation] = strings.TrimSpace(text)
			must(l.t, errOf(l.Kube.Store().Update(l.t.Context(), store.Leases(), lease, store.Main)))
		case strings.TrimSpace(now) != strings.TrimSpace(text):
			l.t.Errorf("%s is not as it was then: have the lab bring it there, or the state can't be replayed:\n%s\nthen:\n%s", name, now, text)
		}
	}
	if l.t.Failed() {
		l.t.FailNow()
	}
}

// mark puts recast's marks on a Node.
func (l *Lab) mark(name, marks string) {
	l.t.Helper()
	node := l.kubeNode(name)
	maps.DeleteFunc(node.Annotations, func(key, _ string) bool { return strings.HasPrefix(key, "recast.dev/") })
	for line := range strings.Lines(marks) {
		key, value, _ := strings.Cut(strings.TrimSpace(line), ": ")
		if key == "unschedulable" {
			node.Spec.Unschedulable = value == "true"
			continue
		}
		node.Annotations[key] = value
	}
	must(l.t, errOf(l.Kube.Store().Update(l.t.Context(), store.Nodes(), node, store.Main)))
}
