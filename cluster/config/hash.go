package config

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"hash"
	"maps"
	"slices"
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
