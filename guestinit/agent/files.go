package agent
func (c *conn) serveStat(*request) bool { return false }
func (c *conn) servePut(*request) bool { return false }
func (c *conn) serveGet(*request) bool { return false }
