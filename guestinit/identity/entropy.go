package identity

import (
	"runtime"
	"unsafe"

	"golang.org/x/sys/unix"
)

// addEntropy is the RNDADDENTROPY ioctl of random(4), whose argument is
// struct rand_pool_info: the entropy in bits, the size in bytes, the bytes.
func addEntropy(fd int, seed []byte) error {
	info := make([]uint32, 2+(len(seed)+3)/4)
	info[0], info[1] = uint32(len(seed)*8), uint32(len(seed))
	copy(unsafe.Slice((*byte)(unsafe.Pointer(&info[2])), len(seed)), seed)
	_, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), unix.RNDADDENTROPY, uintptr(unsafe.Pointer(&info[0])))
	runtime.KeepAlive(info)
	if errno != 0 {
		return errno
	}
	return nil
}
