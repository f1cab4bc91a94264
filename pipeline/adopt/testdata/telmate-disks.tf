# talos-cp-1, talos-wk-1
resource "proxmox_vm_qemu" "talos" {
  lifecycle {
    prevent_destroy = true
    ignore_changes  = [disks, efidisk, boot, bootdisk, description, power_state, start_at_node_boot]
  }
}
removed {
  from = proxmox_vm_qemu.talos
  lifecycle {
    destroy = false
  }
}
