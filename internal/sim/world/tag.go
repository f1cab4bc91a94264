package world

import (
	"maps"
	"slices"
	"strings"
)

// RegisterTags makes tags of VMs privileged: only users with Sys.Modify on / may add or
// remove them.
func (w *World) RegisterTags(tags ...string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.registered = toSet(tags)
}

// RegisteredTags lists the privileged tags.
func (w *World) RegisteredTags() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Sorted(maps.Keys(w.registered))
}

// AllowedTags lists the known tags that user may set: those of the VMs that it may see,
// without the privileged ones (pve-guest-common, GuestHelpers.pm, get_allowed_tags).
func (w *World) AllowedTags(user string) []string {
	w.mu.Look()
	defer w.mu.Unlock()
	privileged := w.check(user, "/", "Sys.Modify") == nil
	allowed := map[string]bool{}
	if privileged {
		maps.Copy(allowed, w.registered)
	}
	for id, v := range w.vms {
		for _, tag := range splitTags(v.config["tags"]) {
			if privileged || !w.registered[tag] && w.check(user, vmPath(id), "VM.Audit") == nil {
				allowed[tag] = true
			}
		}
	}
	list := slices.AppendSeq([]string{}, maps.Keys(allowed)) // an empty list, not null
	slices.Sort(list)
	return list
}

// checkTags checks every added or removed tag (GuestHelpers.pm, assert_tag_permissions).
func (w *World) checkTags(user string, id int, pool, value string) error {
	if err := w.checkVM(user, id, pool, "VM.Config.Options"); err != nil {
		return err
	}
	old := map[string]bool{}
	if v := w.vms[id]; v != nil {
		old = toSet(splitTags(v.config["tags"]))
	}
	fresh := toSet(splitTags(value))
	for _, tag := range slices.Sorted(maps.Keys(w.registered)) {
		if old[tag] != fresh[tag] && w.check(user, "/", "Sys.Modify") != nil {
			return denied("/", "Sys.Modify for modifying tag '"+tag+"'")
		}
	}
	return nil
}

func splitTags(tags string) []string {
	return strings.FieldsFunc(tags, func(r rune) bool { return strings.ContainsRune(";, ", r) })
}
