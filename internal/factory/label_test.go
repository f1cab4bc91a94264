package factory

import (
	"errors"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/google/go-cmp/cmp"
	"github.com/recast-sh/recast/images"
	"github.com/recast-sh/recast/images/verify"
	"github.com/recast-sh/recast/internal/fault"
)

// TestOldContentUnderANewLabel: someone asks a stale factory for the new schematic's
// installer. It is built from the old extension, and served for ever, even by a
// restarted factory with the new list.
func TestOldContentUnderANewLabel(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newSite(t)
		s.relock(t) // the factory has read its list now
		_, is, err := s.catalog.Patch(t.Context(), talos, "qemu-guest-agent")
		if err != nil {
			t.Fatal(err)
		}
		s.relock(t)
		e := s.lock.Schematics["default"]
		if _, _, err := s.client.Register(t.Context(), e.Schematic); err != nil {
			t.Fatal(err)
		}
		if err := s.client.BuildInstaller(t.Context(), images.RequestOf(s.lock, e), nil); err != nil {
			t.Fatal(err)
		}
		s.factory.Restart()

		err = s.build(t)
		m, ok := errors.AsType[*verify.Mismatch](err)
		if !ok || m.Kind != verify.ExtensionContent || fault.KindOf(err) != fault.Refused {
			t.Fatalf("err = %v", err)
		}
		for _, want := range []string{
			"build/default/verify-installer: installer: extension \"qemu-guest-agent\" ", " is not the locked one (" + is + "): 1 file differs: ",
		} {
			if !strings.Contains(err.Error(), want) {
				t.Errorf("error\n got %v\nwant it to hold %q", err, want)
			}
		}
		if hints := strings.Join(fault.Hints(err), "; "); !strings.Contains(hints, "serves an installer for ever") || !strings.Contains(hints, "recast lock --rebuild") {
			t.Errorf("hint = %q", hints)
		}
		if got := s.lock.Schematics["default"]; got.Installer != "" || got.ISO.SHA256 != "" {
			t.Errorf("recorded despite the error: %q %+v", got.Installer, got.ISO)
		}
		t.Attr("corruptions-caught", "1")

		// The factory keeps serving it under that name. Under another it has nothing yet.
		if err := s.build(t); fault.KindOf(err) != fault.Refused {
			t.Errorf("the same again: %v", err)
		}
		s.relock(t, "default")
		if got := s.lock.Schematics["default"]; got.Rebuild != 1 || got.SchematicID == e.SchematicID || cmp.Diff(e.Extensions, got.Extensions) != "" {
			t.Fatalf("locked for a rebuild: %+v", got)
		}
		if err := s.build(t); err != nil {
			t.Fatal(err)
		}
		s.holds(t, s.lock.Schematics["default"])
	})
}
