package proto

import "time"

// FileStat describes one path in the guest, links not followed.
type FileStat struct {
	Name  string    `json:"name"`
	Size  int64     `json:"size_bytes"`
	Mode  uint32    `json:"mode"` // st_mode: type and permission bits
	UID   int       `json:"uid"`
	GID   int       `json:"gid"`
	MTime time.Time `json:"mtime"`
	// LinkTarget is set for symbolic links.
	LinkTarget string `json:"link_target,omitempty"`
}
