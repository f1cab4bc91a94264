package pipeline

import "testing"

func TestWhereTheDisksOfANodeAreInASentence(t *testing.T) {
	t.Parallel()
	h := Half{Node: "wk1", VMID: 9031, Parking: 9090, VM: "deleted"}
	disk := func(key string, place DiskPlace) DiskStatus { return DiskStatus{Disk: key, Place: place} }
	for want, disks := range map[string][]DiskStatus{
		"wk1: VM 9031 (deleted); scsi0 (the old system disk), scsi1 parked on VM 9090, which nothing starts or deletes: nothing is lost": {{Disk: "scsi0", Place: OnParking, System: true}, disk("scsi1", OnParking)},
		"wk1: VM 9031 (deleted); scsi1 on VM 9031; scsi0 parked on VM 9090, which nothing starts or deletes; scsi2 with the VM that owns it: nothing is lost": {
			disk("scsi0", OnParking), disk("scsi1", OnVM), disk("scsi2", Detached),
		},
		"wk1: VM 9031 (deleted); scsi1 on its storage, for the moment without an owner: it is in the record, and recast roll finds it: nothing is lost": {disk("scsi1", Unnamed)},
		"wk1: VM 9031 (deleted); scsi0 on VM 9031; scsi1 not where the record says: run recast status first":                                            {disk("scsi0", OnVM), disk("scsi1", Lost)},
	} {
		h.Disks = disks
		if got := h.safe(); got != want {
			t.Errorf("%q\nwant %q", got, want)
		}
	}
}
