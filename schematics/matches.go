package schematics

import (
	"errors"
	"fmt"
	"maps"
	"slices"
)

// Matches returns how the lock differs from the current configuration: a lock of
// other files, another Talos version or platform must not be built or rolled out.
func (l Lock) Matches(req Request) error {
	var errs []error
	differ := func(what, locked, configured string) {
		if locked != configured {
			errs = append(errs, fmt.Errorf("%s: recast.lock has %q, the configuration %q", what, locked, configured))
		}
	}
	differ("Talos version", l.Talos, req.Talos)
	differ("architecture", l.Arch, req.Arch)
	differ("platform", l.Platform, req.Platform)
	if l.SecureBoot != req.SecureBoot {
		errs = append(errs, errors.New("secure boot: recast.lock and the configuration differ"))
	}
	parsed, err := parseAll(req.Files)
	if err != nil {
		return err
	}
	for _, name := range slices.Sorted(maps.Keys(parsed)) {
		e, ok := l.Schematics[name]
		if !ok {
			errs = append(errs, fmt.Errorf("schematic %s is not in recast.lock", name))
			continue
		}
		if userPart(e) != parsed[name].Canonical() || !e.hasExplicit(req.Files[name].Extensions) {
			errs = append(errs, fmt.Errorf("schematic %s has changed since it was locked", name))
		}
	}
	for _, name := range l.Names() {
		if _, ok := parsed[name]; !ok {
			errs = append(errs, fmt.Errorf("schematic %s is in recast.lock, but not in the configuration", name))
		}
	}
	return errors.Join(errs...)
}

// hasExplicit reports whether the entry's explicit extensions are those, in that order.
func (e Locked) hasExplicit(wanted []Explicit) bool {
	var locked []Extension
	for _, x := range e.Extensions {
		if x.Explicit {
			locked = append(locked, x)
		}
	}
	return slices.EqualFunc(locked, wanted, func(x Extension, w Explicit) bool {
		return x.Ref == w.Repository && x.Tag == w.Tag && (w.Digest == "" || x.Digest == w.Digest)
	})
}
