package config

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"hash"
	"maps"
	"slices"
	"strings"
)

// Hash is the SHA-256 of the documents' content: two configurations have the same hash exactly if
// Compare finds no difference.
func (d Documents) Hash() string {
	h := sha256.New()
	for _, doc := range d.list {
		say(h, "document", doc.id)
		doc.root.write(h)
	}
	return hex.EncodeToString(h.Sum(nil))
}

// say writes a word and a text so that no two sequences of them give the same bytes.
func say(h hash.Hash, word, text string) { fmt.Fprintf(h, "%s %d %s\n", word, len(text), text) }

func (v *value) write(h hash.Hash) {
	switch v.kind {
	case null:
		say(h, "null", "")
	case scalar:
		say(h, "scalar", v.text)
	case mapping:
		for _, key := range slices.Sorted(maps.Keys(v.fields)) {
			if child := v.fields[key]; child.kind != null {
				say(h, "field", key)
				child.write(h)
			}
		}
		say(h, "end of mapping", "")
	case list:
		for _, item := range v.items {
			say(h, "item", "")
			item.write(h)
		}
		say(h, "end of list", "")
	}
}

// Role is the one that the configuration gives its node, as Kubernetes' users know it: "control-plane"
// or "worker".
func (d Documents) Role() string {
	if t := d.machineType(); t == "controlplane" || t == typeInit {
		return "control-plane"
	}
	return "worker" // Talos takes "join" for that as well (config/machine, ParseType)
}

// SaysRole says whether the configuration has a machine.type: Role takes one without for a worker's.
func (d Documents) SaysRole() bool { return d.machineType() != "" }

// TypeInit says whether the configuration is of a control plane of machine.type init.
func (d Documents) TypeInit() bool { return d.machineType() == typeInit }

const typeInit = "init"

// machineType is the machine.type; "": it has none.
func (d Documents) machineType() string {
	for _, doc := range d.list {
		if doc.id != MainDocument {
			continue
		}
		if t := doc.root.at([]string{"machine", "type"}); t != nil {
			return t.shown
		}
	}
	return ""
}

// SameButForRecast says whether two configurations differ in nothing but what recast sets in each:
// installer, install disk, hostname, and the versions of Kubernetes. If it says no, they may be the
// same nevertheless: one of them may be written in other documents.
func SameButForRecast(a, b Documents) bool { return a.neutral().Hash() == b.neutral().Hash() }

// setByRecast are the fields that recast sets, by the kind of document.
var setByRecast = map[string][][]string{
	MainDocument: {
		{"machine", "install", "image"},
		{"machine", "install", "disk"},
		{"machine", "install", "diskSelector"},
		{"machine", "install", "wipe"},
		{"machine", "network", "hostname"},
	},
	"UnattendedInstallConfig": {{"installer", "image"}, {"provisioning", "diskSelector"}, {"provisioning", "wipe"}},
	"HostnameConfig":          {{"hostname"}, {"auto"}},
}

// neutral is d without those fields, and without versions in images of Kubernetes.
func (d Documents) neutral() Documents {
	var out Documents
	for _, doc := range d.list {
		for _, path := range setByRecast[doc.id] {
			doc.root = doc.root.with(path, nil)
		}
		for where, usual := range kubernetesImages {
			kind, path, _ := strings.Cut(where, " ")
			if image := doc.root.at(strings.Split(path, ".")); kind == doc.id && image != nil && image.kind == scalar {
				doc.root = doc.root.with(strings.Split(path, "."), &value{kind: scalar, text: "image " + repository(cmp.Or(image.shown, usual))})
			}
		}
		out.list = append(out.list, doc)
	}
	return out
}

// at is the value at a path of keys; nil if there is none.
func (v *value) at(path []string) *value {
	for _, key := range path {
		if v = v.fields[key]; v == nil {
			return nil
		}
	}
	return v
}

// with is a copy of v with another value at a path that it has; nil removes it, and mappings that
// become empty.
func (v *value) with(path []string, other *value) *value {
	child := v.fields[path[0]]
	if child == nil {
		return v
	}
	if len(path) > 1 {
		other = child.with(path[1:], other)
	}
	changed := *v
	changed.fields = maps.Clone(v.fields)
	if other == nil || other.kind == mapping && len(other.fields) == 0 {
		delete(changed.fields, path[0])
	} else {
		changed.fields[path[0]] = other
	}
	return &changed
}
