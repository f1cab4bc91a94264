# prod-cp1, prod-wk1
resource "proxmox_virtual_environment_vm" "this" {  # in the source of module.cluster.module.node
  lifecycle {
    prevent_destroy = true
    ignore_changes  = [disk, efi_disk, cdrom, boot_order, description, started, on_boot]
  }
}
removed {
  from = module.cluster.module.node.proxmox_virtual_environment_vm.this
  lifecycle {
    destroy = false
  }
}
