package pveapi_test

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/recast-sh/recast/internal/sim/world"
)

// sendImport uploads an image to be imported.
func (l *lab) sendImport(name string, content []byte) string {
	l.t.Helper()
	const form = "--B\r\nContent-Disposition: form-data; name=\"content\"\r\n\r\nimport\r\n" +
		"--B\r\nContent-Disposition: form-data; name=\"filename\"; filename=\"%s\"\r\nContent-Type: x/y\r\n\r\n%s\r\n--B--\r\n"
	r := l.as(tokenID, "POST", "/nodes/pve1/storage/local/upload", "multipart/form-data; boundary=B", fmt.Appendf(nil, form, name, content))
	upid, ok := r.Data.(string)
	if !ok {
		return r.Status
	}
	task, _ := l.world.WaitTask(upid)
	return task.ExitStatus
}

// emptyQcow2 is the header of an empty image of that size.
func emptyQcow2(size uint64) []byte {
	b := make([]byte, 72)
	copy(b, "QFI\xfb")
	binary.BigEndian.PutUint32(b[4:], 3)
	binary.BigEndian.PutUint64(b[24:], size)
	return b
}

// TestImport: a disk with known bytes can be made with the API alone.
func TestImport(t *testing.T) {
	t.Parallel()
	inLab(t, func(t *testing.T, l *lab) {
		l.world.AddStorage(world.Storage{ID: "local", Type: "dir", Content: []string{"iso", "vztmpl", "import"}})
		content := make([]byte, 96<<10)
		copy(content, "recognisable")
		if got := l.sendImport("data.raw", content); got != "OK" {
			t.Fatal(got)
		}
		file := map[string]any{"volid": "local:import/data.raw", "content": "import", "format": "raw", "size": 98304.0, "ctime": 946684801.0}
		for _, query := range []string{"", "?content=import", "?vmid=9011"} {
			if diff := cmp.Diff([]any{file}, l.do("GET", "/nodes/pve1/storage/local/content"+query).Data); diff != "" {
				t.Errorf("%s: %s", query, diff)
			}
		}
		info := map[string]any{"path": "/var/lib/vz/import/data.raw", "size": 98304.0, "used": 98304.0, "format": "raw"}
		if diff := cmp.Diff(info, l.do("GET", "/nodes/pve1/storage/local/content/local:import%2Fdata.raw").Data); diff != "" {
			t.Error(diff)
		}
		l.putOK(vm+"/config", "scsi5=fast:0,import-from=local:import/data.raw,serial=s", "scsi6=thin:0,import-from=local:import/data.raw")
		if got := l.task("POST", "/nodes/pve1/qemu", "vmid=9012", "scsi0=fast:0,import-from=local:import/data.raw,format=qcow2"); got != "OK" {
			t.Fatal(got)
		}
		got := []any{l.config(9011)["scsi5"], l.config(9011)["scsi6"], l.config(9012)["scsi0"]}
		want := []any{"fast:9011/vm-9011-disk-3.raw,serial=s,size=96K", "thin:vm-9011-disk-0,size=4M", "fast:9012/vm-9012-disk-0.qcow2,size=96K"}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Error(diff)
		}
		for _, volid := range []string{"fast:9011/vm-9011-disk-3.raw", "thin:vm-9011-disk-0", "fast:9012/vm-9012-disk-0.qcow2"} {
			if !bytes.Equal(content, l.world.Media(volid, "pve1").Bytes()) {
				t.Errorf("%s has other bytes", volid)
			}
		}
		if got := l.root("DELETE", "/nodes/pve1/storage/local/content/local:import%2Fdata.raw").Status; got != "200 OK" {
			t.Error(got)
		}
	})
}

func TestImportRefused(t *testing.T) {
	t.Parallel()
	bad := func(key, problem string) reply {
		return reply{Status: "400 Parameter verification failed.", Message: "Parameter verification failed.\n", Errors: map[string]string{key: problem}}
	}
	fails := func(message string) reply { return reply{Status: "500 " + message, Message: message + "\n"} }
	tests := map[string]struct {
		set  string
		want reply
	}{
		"an ISO":                      {"scsi5=fast:0,import-from=isos:iso/boot.iso", bad("scsi5", "isos:iso/boot.iso has wrong type 'iso' - needs to be 'images' or 'import'")},
		"a size":                      {"scsi5=fast:1,import-from=local:import/a.raw", bad("scsi5", "'import-from' requires special syntax - use <storage ID>:0,import-from=<source>")},
		"an import volume as a drive": {"scsi5=local:import/a.raw", bad("scsi5", "content type needs to be 'images' or 'iso'")},
		"EFI variables of no type":    {"efidisk0=fast:0,import-from=local:import/a.raw", bad("efidisk0", "need to specify 'efitype' when using 'import-from'")},
		"TPM state of no version":     {"tpmstate0=fast:0,import-from=local:import/a.raw", bad("tpmstate0", "need to specify 'version' when using 'import-from'")},
		"another VM's disk":           {"scsi5=fast:0,import-from=fast:500/vm-500-disk-0.raw", reply{Status: "403 Permission check failed (/vms/500, VM.Clone)", Message: "Permission check failed (/vms/500, VM.Clone)\n"}},
		"nothing there":               {"scsi5=fast:0,import-from=local:import/b.raw", fails("failed to stat '/var/lib/vz/import/b.raw'")},
		"no such storage":             {"scsi5=fast:0,import-from=nosuch:import/b.raw", fails("storage 'nosuch' does not exist")},
		"no such kind of volume":      {"scsi5=fast:0,import-from=local:import/b.txt", fails("unable to parse directory volume name 'import/b.txt'")},
		"a file of the host":          {"scsi5=fast:0,import-from=/etc/passwd", fails("Only root can pass arbitrary filesystem paths.")},
		"no qcow2 at all":             {"scsi5=fast:0,import-from=local:import/c.qcow2", fails("failed to query file information with qemu-img")},
		"an archive":                  {"scsi5=fast:0,import-from=local:import/d.ova", fails("cannot import from 'local:import/d.ova' - cannot import from 'local:import/d.ova' - full clone feature is not supported")},
		"a disk in an archive": {
			"scsi5=fast:0,import-from=local:import/d.ova/x.vmdk",
			bad("scsi5", "import working storage 'local' does not support 'images' content type or is not file based."),
		},
		"a disk of its own that is gone": {
			"scsi5=fast:0,import-from=fast:9011/vm-9011-disk-9.raw",
			fails("cannot import from 'fast:9011/vm-9011-disk-9.raw' - could not get size of fast:9011/vm-9011-disk-9.raw"),
		},
		"an empty qcow2": {"scsi5=fast:0,import-from=local:import/e.qcow2", reply{Status: "200 OK"}},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			inLab(t, func(t *testing.T, l *lab) {
				l.world.AddRole("Clones", append(talosRole(), "VM.Clone")...)
				l.world.Grant(world.ACL{Path: "/vms/9011", Who: tokenID, Role: "Clones"})
				l.world.AddStorage(world.Storage{ID: "local", Type: "dir", Content: []string{"iso", "import"}})
				for file, content := range map[string][]byte{"a.raw": []byte("x"), "c.qcow2": []byte("not one"), "d.ova": []byte("tar"), "e.qcow2": emptyQcow2(7 << 30)} {
					if got := l.sendImport(file, content); got != "OK" {
						t.Fatal(got)
					}
				}
				if diff := cmp.Diff(test.want, l.do("PUT", vm+"/config", test.set)); diff != "" {
					t.Error(diff)
				}
				if got := l.config(9011)["scsi5"]; test.want.Status == "200 OK" && got != "fast:9011/vm-9011-disk-3.qcow2,size=7G" {
					t.Error(got)
				}
			})
		})
	}
}
