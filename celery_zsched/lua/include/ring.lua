-- ring: wake one blocked claimer. The marker is one and the same, so that many rings before a wake-up are one.
-- It lives a minute at most: a claimer claims before it blocks, so nobody misses a marker that lapsed.
local BLOCK_MAX_US = 30000000 -- no claimer blocks longer than this; what is due later is found by then without a ring

local function ring(bell)
  if call('ZADD', bell, 0, 'ring') == 1 then
    call('PEXPIRE', bell, 60000)
  end
end

-- Ring for something due at `due`, unless it is far off or a claimer wakes by itself by then.
local function ring_for(due, bell, watch)
  if due > now then
    if due > now + BLOCK_MAX_US or call('ZCOUNT', watch, stamp(now), stamp(due)) > 0 then
      return
    end
  end
  ring(bell)
end
