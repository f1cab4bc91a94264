package world

import (
	"cmp"
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

// TagAccess is datacenter.cfg's user-tag-access: which tags a user without Sys.Modify on / may add to
// a VM or take from it (pve-cluster, DataCenterConfig.pm).
type TagAccess struct {
	Allow string   // "free", "existing", "list" or "none"; "" is "free"
	List  []string // user-allow-list: always allowed, unless Allow is "none"
}

// RestrictTags sets user-tag-access.
func (w *World) RestrictTags(a TagAccess) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.tagAccess = a
}

// TagAccess returns user-tag-access.
func (w *World) TagAccess() TagAccess {
	w.mu.Look()
	defer w.mu.Unlock()
	return w.tagAccess
}

// AllowedTags lists the known tags that user may set: those of the VMs that it may see,
// without the privileged ones (pve-guest-common, GuestHelpers.pm, get_allowed_tags).
func (w *World) AllowedTags(user string) []string {
	w.mu.Look()
	defer w.mu.Unlock()
	list := slices.AppendSeq([]string{}, maps.Keys(w.allowedTags(user))) // an empty list, not null
	slices.Sort(list)
	return list
}

func (w *World) allowedTags(user string) map[string]bool {
	privileged := w.check(user, "/", "Sys.Modify") == nil
	allow := cmp.Or(w.tagAccess.Allow, "free")
	allowed := map[string]bool{}
	if allow != "none" || privileged {
		maps.Copy(allowed, toSet(w.tagAccess.List))
	}
	if allow == "free" || allow == "existing" || privileged {
		for id, v := range w.vms {
			for _, tag := range splitTags(v.config["tags"]) {
				if privileged || w.check(user, vmPath(id), "VM.Audit") == nil {
					allowed[tag] = true
				}
			}
		}
	}
	if privileged {
		maps.Copy(allowed, w.registered)
		return allowed
	}
	maps.DeleteFunc(allowed, func(tag string, _ bool) bool { return w.registered[tag] })
	return allowed
}

// checkTags checks every added or removed tag (GuestHelpers.pm, assert_tag_permissions). old are the
// tags before.
func (w *World) checkTags(user string, id int, pool, old, value string) error {
	if err := w.checkVM(user, id, pool, "VM.Config.Options"); err != nil {
		return err
	}
	was, is := toSet(splitTags(old)), toSet(splitTags(value))
	all := maps.Clone(was)
	maps.Copy(all, is)
	if w.check(user, "/", "Sys.Modify") == nil {
		return nil
	}
	free := cmp.Or(w.tagAccess.Allow, "free") == "free"
	allowed := w.allowedTags(user)
	for _, tag := range slices.Sorted(maps.Keys(all)) {
		if was[tag] != is[tag] && (w.registered[tag] || !free && !allowed[tag]) {
			return denied("/", "Sys.Modify for modifying tag '"+tag+"'")
		}
	}
	return nil
}

// tagsOf returns a VM's tags.
func (w *World) tagsOf(id int) string {
	if v := w.vms[id]; v != nil {
		return v.config["tags"]
	}
	return ""
}

// noTags is what create_vm hands to assert_tag_permissions as the tags before: an empty hash in place of
// a string, which reads as one more tag that is taken away (qemu-server 9.2, API2/Qemu.pm, create_vm).
const noTags = "HASH(0x5581a1d7c2b8)"

func splitTags(tags string) []string {
	return strings.FieldsFunc(tags, func(r rune) bool { return strings.ContainsRune(";, ", r) })
}
