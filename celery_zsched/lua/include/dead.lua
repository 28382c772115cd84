-- dead: of the dead, those beyond the bound go for good, oldest first.
local DROP_AT_MOST = 500 -- a call; none buries more

local function bound_dead(keep)
  local excess = math.min(call('ZCARD', dead) - keep, DROP_AT_MOST)
  if excess > 0 then
    local oldest = call('ZRANGE', dead, 0, excess - 1)
    call('ZREM', dead, unpack(oldest))
    for _, key in ipairs({claims, bodies, reasons, notes}) do
      call('HDEL', key, unpack(oldest))
    end
  end
end
