package pveapi_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/recast-sh/recast/internal/sim/world"
)

func TestImportRefused(t *testing.T) {
	t.Parallel()
	bad := func(key, problem string) reply {
		return reply{Status: "400 Parameter verification failed.", Message: "Parameter verification failed.\n", Errors: map[string]string{key: problem}}
	}
	fails := func(message string) reply { return reply{Status: "500 " + message, Message: message + "\n"} }
	type row struct {
		set  string
		want reply
	}
	tests := map[string]row{
		"an ISO":                      {"scsi5=fast:0,import-from=isos:iso/boot.iso", bad("scsi5", "isos:iso/boot.iso has wrong type 'iso' - needs to be 'images' or 'import'")},
		"an import volume as a drive": {"scsi5=local:import/a.raw", bad("scsi5", "content type needs to be 'images' or 'iso'")},
		"EFI variables of no type":    {"efidisk0=fast:0,import-from=local:import/a.raw", bad("efidisk0", "need to specify 'efitype' when using 'import-from'")},
		"TPM state of no version":     {"tpmstate0=fast:0,import-from=local:import/a.raw", bad("tpmstate0", "need to specify 'version' when using 'import-from'")},
		"another VM's disk":           {"scsi5=fast:0,import-from=fast:500/vm-500-disk-0.raw", reply{Status: "403 Permission check failed (/vms/500, VM.Clone)", Message: "Permission check failed (/vms/500, VM.Clone)\n"}},
		"nothing there":               {"scsi5=fast:0,import-from=local:import/b.raw", fails("failed to stat '/var/lib/vz/import/b.raw'")},
		"no such storage":             {"scsi5=fast:0,import-from=nosuch:import/b.raw", fails("storage 'nosuch' does not exist")},
		"no such kind of volume":      {"scsi5=fast:0,import-from=local:import/b.txt", fails("unable to parse directory volume name 'import/b.txt'")},
		"a file of the host":          {"scsi5=fast:0,import-from=/etc/passwd", fails("Only root can pass arbitrary filesystem paths.")},
		"a disk of its own that is gone": {
			"scsi5=fast:0,import-from=fast:9011/vm-9011-disk-9.raw",
			fails("cannot import from 'fast:9011/vm-9011-disk-9.raw' - could not get size of fast:9011/vm-9011-disk-9.raw"),
		},
	}
	inEachLab(t, tests, func(t *testing.T, l *lab, test row) {
		l.world.AddRole("Clones", append(talosRole(), "VM.Clone")...)
		l.world.Grant(world.ACL{Path: "/vms/9011", Who: tokenID, Role: "Clones"})
		l.world.AddStorage(world.Storage{ID: "local", Type: "dir", Content: []string{"iso", "import"}})
		if diff := cmp.Diff(test.want, l.do("PUT", vm+"/config", test.set)); diff != "" {
			t.Error(diff)
		}
	})
}
